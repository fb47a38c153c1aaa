//! `tools`, `tool_choice` and `parallel_tool_calls` of the chat API.

use serde_json::{Value, json};

use crate::api::ask::{Chat, ParallelCalls, Tool, ToolChoice};
use crate::api::error::ApiError;
use crate::api::fields::Fields;

/// Most tools of a request.
pub const MAX_TOOLS: usize = 256;

/// Longest name of a tool.
const MAX_NAME: usize = 256;

/// Takes the fields about tools.
pub fn tools(fields: &mut Fields, chat: &mut Chat) -> Result<(), ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let read = list.into_iter().enumerate().map(|(index, value)| {
        let mut fields = Fields::of(format!("tools[{index}]"), value)?;
        fields.word("type", &["function"])?.ok_or_else(|| ApiError::missing(&fields.path("type"), "function"))?;
        let mut function = fields
            .object("function")?
            .ok_or_else(|| ApiError::missing(&fields.path("function"), "an object with name and parameters"))?;
        let tool = function_fields(&mut function, "parameters")?;
        function.finish()?;
        fields.finish()?;
        Ok(tool)
    });
    chat.tools = read.collect::<Result<Vec<_>, ApiError>>()?;
    check(&chat.tools)?;
    if let Some(value) = fields.take("tool_choice") {
        chat.tool_choice = choice(value, &chat.tools, |fields| {
            let mut function = fields
                .object("function")?
                .ok_or_else(|| ApiError::missing("tool_choice.function", "an object with name"))?;
            let name = function.required_text("name")?;
            function.finish()?;
            Ok(name)
        })?;
    }
    if fields.flag("parallel_tool_calls")? == Some(false) {
        chat.parallel_calls = ParallelCalls::One;
    }
    Ok(())
}

/// Takes name, description and schema of a function.
pub fn function_fields(fields: &mut Fields, schema: &str) -> Result<Tool, ApiError> {
    let name = fields.required_text("name")?;
    let valid = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(valid) {
        let accepted = "letters, digits and _-.:/, at most 256";
        return Err(ApiError::value(&fields.path("name"), &Value::String(name), accepted));
    }
    let description = fields.text("description")?;
    // With `strict`, arguments must keep the schema; that holds whenever a call is required, and cannot be held otherwise
    // without forbidding text beside the call.
    fields.flag("strict")?;
    let path = fields.path(schema);
    let parameters = match fields.take(schema) {
        None => json!({"type": "object", "properties": {}}),
        Some(object @ Value::Object(_)) => object,
        Some(other) => return Err(ApiError::value(&path, &other, "a JSON schema of an object")),
    };
    Ok(Tool { name, description, parameters, path })
}

/// Refuses two tools of one name, and too many.
pub fn check(tools: &[Tool]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        let message = format!("`tools` has {} entries (accepted: at most {MAX_TOOLS})", tools.len());
        return Err(ApiError::invalid("tools", message));
    }
    for (index, tool) in tools.iter().enumerate() {
        if tools[..index].iter().any(|other| other.name == tool.name) {
            let path = format!("tools[{index}]");
            return Err(ApiError::invalid(&*path, format!("`{path}`: there is a tool {:?} already", tool.name)));
        }
    }
    Ok(())
}

/// Reads `tool_choice`; `named` takes the name from an object of type function.
pub fn choice(
    value: Value,
    tools: &[Tool],
    named: impl FnOnce(&mut Fields) -> Result<String, ApiError>,
) -> Result<ToolChoice, ApiError> {
    let accepted = "auto, none, required, or an object that names a function";
    let choice = match value.as_str() {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("required") => ToolChoice::Required,
        Some(_) => return Err(ApiError::value("tool_choice", &value, accepted)),
        None if value.is_object() => {
            let mut fields = Fields::of("tool_choice", value)?;
            fields.word("type", &["function"])?.ok_or_else(|| ApiError::missing("tool_choice.type", "function"))?;
            let name = named(&mut fields)?;
            fields.finish()?;
            if !tools.iter().any(|tool| tool.name == name) {
                let message = format!("`tool_choice` names {name:?}, which is not in `tools`");
                return Err(ApiError::invalid("tool_choice", message));
            }
            ToolChoice::Named(name)
        }
        None => return Err(ApiError::value("tool_choice", &value, accepted)),
    };
    if tools.is_empty() && choice == ToolChoice::Required {
        return Err(ApiError::invalid("tool_choice", "`tool_choice` is \"required\", but `tools` is empty"));
    }
    Ok(choice)
}
