//! The configuration as it may be shown: what the file says over what is built in, what flags and environment say over
//! both, and no secret.

use super::env::{Given, Overrides};
use super::fault::quoted;
use serde_json::{Map, Value};

/// What stands for a secret.
const HIDDEN: &str = "***";

/// Where secrets stand.
const SECRETS: [(&str, &str); 3] =
    [("identity", "key_pepper"), ("identity", "key_pepper_previous"), ("admin", "token")];

/// `builtin` and `file` as they were read.
pub(super) fn shown(builtin: Value, file: Option<&Value>, overrides: &Overrides) -> Value {
    let mut tree = builtin;
    if let Some(file) = file {
        lay_over(&mut tree, file, 0);
    }
    let text = |given: &Option<Given>| given.as_ref().map(|given| Value::from(given.text()));
    let urls = overrides.redis_url.as_ref().map(|given| given.text().split(',').map(Value::from).collect::<Value>());
    for (section, key, value) in [
        ("", "listen", text(&overrides.listen)),
        ("admin", "listen", text(&overrides.admin_listen)),
        ("log", "filter", text(&overrides.log_filter)),
        ("log", "format", text(&overrides.log_format)),
        ("redis", "urls", urls),
        ("admin", "token", overrides.admin_token.as_ref().map(|_| HIDDEN.into())),
        ("identity", "key_pepper", overrides.key_pepper.as_ref().map(|_| HIDDEN.into())),
        ("identity", "key_pepper_previous", overrides.key_pepper_previous.as_ref().map(|_| HIDDEN.into())),
        ("redis", "password", overrides.redis_password.as_ref().map(|_| HIDDEN.into())),
    ] {
        let Some(value) = value else { continue };
        let place = if section.is_empty() { &mut tree } else { entry(&mut tree, section) };
        *entry(place, key) = value;
    }
    hide(&mut tree);
    tree
}

/// A key's value; an empty one where there was none.
fn entry<'t>(tree: &'t mut Value, key: &str) -> &'t mut Value {
    if !tree.is_object() {
        *tree = Value::Object(Map::new());
    }
    &mut tree[key]
}

/// As the configuration is read: mappings are laid over each other, `tiers` and lists replaced.
fn lay_over(tree: &mut Value, over: &Value, depth: usize) {
    match (tree, over) {
        (Value::Object(tree), Value::Object(over)) => {
            for (key, value) in over {
                match tree.get_mut(key) {
                    Some(there) if !(depth == 0 && key == "tiers") => lay_over(there, value, depth + 1),
                    _ => drop(tree.insert(key.clone(), value.clone())),
                }
            }
        }
        (tree, over) => *tree = over.clone(),
    }
}

fn hide(tree: &mut Value) {
    for (section, key) in SECRETS {
        if let Some(secret) = tree.get_mut(section).and_then(|section| section.get_mut(key)) {
            *secret = HIDDEN.into();
        }
    }
    let urls = tree.get_mut("redis").and_then(|redis| redis.get_mut("urls")).and_then(Value::as_array_mut);
    for url in urls.into_iter().flatten() {
        // A password in a query is none of Redis's, but somebody's all the same.
        let bare = url.as_str().unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
        *url = quoted(bare).trim_matches('"').into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_file_goes_before_what_is_built_in_and_no_secret_is_shown() {
        let builtin =
            json!({"drain": "5s", "tiers": {"free": 1, "gold": 2}, "identity": {"user": [1], "ip": {"from": "peer"}}});
        let file = json!({
            "tiers": {"one": 3},
            "identity": {"user": [], "key_pepper": "hunter2", "key_pepper_previous": "hunter1"},
            "admin": {"token": "hunter3"},
            "redis": {"urls": ["redis://u:hunter4@h:6379/0", "redis://h?password=hunter5", "hunter6@h"]},
        });
        let overrides = Overrides {
            admin_listen: Some(Given::new("TIDEGATE_ADMIN_LISTEN", "off")),
            redis_password: Some(Given::new("TIDEGATE_REDIS_PASSWORD", "hunter7")),
            ..Overrides::default()
        };
        let told = shown(builtin, Some(&file), &overrides);
        assert_eq!(told["tiers"], json!({"one": 3}));
        assert_eq!(told["identity"]["user"], json!([]));
        assert_eq!(told["identity"]["ip"]["from"], "peer");
        assert_eq!((&told["admin"]["listen"], &told["drain"]), (&json!("off"), &json!("5s")));
        assert_eq!(told["redis"]["urls"][0], "redis://…@h:6379/0");
        let text = told.to_string();
        for secret in ["hunter1", "hunter2", "hunter3", "hunter4", "hunter5", "hunter7"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}
