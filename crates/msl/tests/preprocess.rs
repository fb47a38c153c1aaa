//! Macros and conditionals behave as C's, and errors name part and line.

use msl::Source;
use msl::lex::join;
use msl::preprocess::preprocess;

fn text(source: &str) -> String {
    join(&preprocess(&Source::new("x.metal", source)).unwrap_or_else(|error| panic!("{error}")))
}

fn error(source: &str) -> String {
    preprocess(&Source::new("x.metal", source)).unwrap_err().to_string()
}

#[test]
fn macros_expand_paste_and_stringize() {
    assert_eq!(text("#define N 4\n#define SQ(x) ((x)*(x))\nSQ(N+1)"), "((4+1)*(4+1))");
    assert_eq!(text("#define CAT(a, b) a##b\n#define STR(x) #x\nCAT(float, 4) STR(a + b)"), "float4 \"a + b\"");
    assert_eq!(text("#define F(name, ...) name(__VA_ARGS__)\nF(g, 1, 2<3>, (4, 5)) F(h)"), "g(1, 2<3>, (4, 5)) h()");
    assert_eq!(text("#define A B\n#define B A\nA B"), "A B");
    assert_eq!(text("#define F(x) x\n#define G F\nG(1) F"), "1 F");
    assert_eq!(text("#define N 1\n#undef N\nN"), "N");
}

#[test]
fn conditionals_choose_one_branch() {
    let source = "#if defined(__METAL_VERSION__) && __METAL_VERSION__ >= 400\na\n#elif 1\nb\n#else\nc\n#endif";
    assert_eq!(text(source), "a");
    let older = Source::new("x.metal", source).metal_version(310);
    assert_eq!(join(&preprocess(&older).unwrap()), "b");
    assert_eq!(text("#ifdef X\n#if 1 /\na\n#endif\n#else\nb\n#endif"), "b");
    assert_eq!(text("#define W 64\n#if (W / 2) % 32 == 0 && !(W << 1 != 128)\na\n#endif"), "a");
}

#[test]
fn constants_of_an_earlier_part_are_seen_by_later_ones() {
    let source =
        Source::empty().define("ROWS", 64).with("a.metal", "#define TWICE (2*ROWS)\n").with("b.metal", "TWICE");
    assert_eq!(join(&preprocess(&source).unwrap()), "(2*64)");
    let includes = source.with("c.metal", "#include <metal_stdlib>\n#include \"a.metal\"\nx");
    assert_eq!(join(&preprocess(&includes).unwrap()), "(2*64) x");
}

#[test]
fn errors_name_the_part_and_the_line() {
    assert_eq!(error("\n#error too small"), "x.metal:2: #error too small");
    assert!(error("#if 1\n").starts_with("x.metal:1: #if without #endif"));
    assert!(error("#include \"other.metal\"").contains("not among the parts"));
    assert!(error("#define F(a, b) a\nF(1)").contains("takes 2 arguments, 1 given"));
    assert!(error("/* never").contains("comment does not end"));
    assert!(error("#if 1 +\n#endif").contains("not an integer constant expression"));
}
