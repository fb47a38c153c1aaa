"""`lily plan`: forms of the command, and figures that must hold for the published geometry."""

import json

from conftest import ROOT


def test_json_has_the_figures_of_the_35b_geometry(lily):
    done = lily("plan", "--preset", "35b", "--json", "--bandwidth", "546")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["dispatches"] == len(plan["ops"]) <= 300
    assert plan["levels"] == max(op["level"] for op in plan["ops"]) <= 260
    assert 1.77e9 < plan["bytes"] < 1.81e9
    assert abs(plan["max_tokens_per_s"] - 546e9 / plan["bytes"]) < 0.1


def test_the_metal_table_keeps_its_budget_for_the_35b_geometry(lily):
    done = lily("plan", "--preset", "35b", "--device", "metal", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["dispatches"] == len(plan["ops"]) <= 300
    assert plan["levels"] == max(op["level"] for op in plan["ops"]) <= 260
    assert plan["floor_bytes"] <= plan["moved_bytes"] < 1.03 * plan["floor_bytes"]
    assert {op["kernel"] for op in plan["ops"]} >= {"gdn_step", "attn_decode", "expert_down_norm", "lm_head"}
    for rows in ("512", "4096"):
        prefill = json.loads(
            lily("plan", "--preset", "35b", "--device", "metal", "--phase", "prefill", "--rows", rows, "--json").stdout
        )
        assert prefill["dispatches"] <= 583 and prefill["levels"] <= 473


def test_a_config_alone_is_enough(lily, tmp_path):
    mini = json.loads((ROOT / "assets/mini/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(mini))
    folder = json.loads(lily("plan", "--model", tmp_path, "--json").stdout)
    builtin = json.loads(lily("plan", "--json").stdout)
    assert folder["ops"] == builtin["ops"]


def test_dot_names_every_operation(lily):
    plan = json.loads(lily("plan", "--phase", "prefill", "--rows", "64", "--json").stdout)
    dot = lily("plan", "--phase", "prefill", "--rows", "64", "--dot").stdout
    assert dot.startswith("digraph") and dot.count("[label=") == plan["dispatches"]


def test_wrong_usage_is_refused_with_the_accepted_values(lily):
    assert lily("plan", "--rows", "0").returncode == 2
    done = lily("plan", "--rows", "17")
    assert done.returncode == 1 and "1 to 16" in done.stderr and done.stdout == ""
    done = lily("plan", "--model", "/nowhere")
    assert done.returncode == 1 and "/nowhere/config.json" in done.stderr
