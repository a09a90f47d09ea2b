//! docs/admin.md is true: each request that it shows is sent to a running service, which answers as the page says.

use crate::support::admin::{Answer, ask_with};
use crate::support::eventually;
use crate::support::service::{Tidegate, block_on, check, client};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;

/// What differs from run to run: its kind is compared, and nothing more.
const VOLATILE: [&str; 8] = ["from", "hash", "loaded_at", "at", "tokens", "seconds", "time", "full_in"];
/// Stands for what the page leaves out of an object.
const REST: &str = "…";

/// A fenced block of the page.
enum Block<'a> {
    /// A configuration, with which a service is started.
    Config(&'a str),
    /// What the file of the running service is changed to.
    Changed(&'a str),
    Exchange(Exchange<'a>),
}

/// A request, and how it is answered.
#[derive(Debug)]
struct Exchange<'a> {
    method: &'a str,
    target: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    body: &'a str,
    status: u16,
    answer_fields: Vec<&'a str>,
    answer: &'a str,
}

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/admin.md")).unwrap()
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced
        .map(|block| match block.split_once('\n').unwrap() {
            ("yaml", text) if text.starts_with("# the same file, changed\n") => Block::Changed(text),
            ("yaml", text) => Block::Config(text),
            ("http", text) => Block::Exchange(exchange(text)),
            (language, text) => panic!("a block of {language:?}: {text}"),
        })
        .collect()
}

fn exchange(text: &str) -> Exchange<'_> {
    let (request, answer) = text.split_once("\n\nHTTP/1.1 ").unwrap_or_else(|| panic!("no answer in {text}"));
    let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
    let (answer_head, answer) = answer.split_once("\n\n").unwrap_or_else(|| panic!("no body in {text}"));
    let (mut head, mut answer_fields) = (head.lines(), answer_head.lines());
    let mut line = head.next().unwrap().strip_suffix(" HTTP/1.1").unwrap().split(' ');
    let status = answer_fields.next().unwrap().split(' ').next().unwrap().parse().unwrap();
    let [method, target] = [(); 2].map(|()| line.next().unwrap());
    let fields = head.map(|field| field.split_once(": ").unwrap()).collect();
    Exchange { method, target, fields, body, status, answer_fields: answer_fields.collect(), answer }
}

/// A service with a configuration of the page, which alice has met once.
struct Running {
    folder: TempDir,
    service: Tidegate,
    admin: SocketAddr,
}

impl Running {
    fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.yaml");
        fs::write(&file, config).unwrap();
        // The port is any that is free, beyond this machine where the page says so.
        let listen = if config.contains("\"0.0.0.0:8080\"") { "0.0.0.0:0" } else { "127.0.0.1:0" };
        let service = Tidegate::start_at(&file, &[("TIDEGATE_ADMIN_LISTEN", listen)]);
        let admin = ([127, 0, 0, 1], service.admin.port()).into();
        block_on(async { client(&service).await.check(check(&[("x-user", "alice")])).await.unwrap() });
        Self { folder, service, admin }
    }

    fn change(&self, config: &str) {
        fs::write(self.folder.path().join("tidegate.yaml"), config).unwrap();
    }

    fn send(&self, exchange: &Exchange<'_>) -> Answer {
        ask_with(self.admin, exchange.method, exchange.target, &exchange.fields, exchange.body)
    }
}

/// How an answer differs from the page.
fn fault(exchange: &Exchange<'_>, answer: &Answer) -> Option<String> {
    if answer.status() != exchange.status {
        return Some(format!("{} is answered", answer.status()));
    }
    let missing = exchange.answer_fields.iter().find(|field| !answer.head.lines().any(|line| line == **field));
    if let Some(field) = missing {
        return Some(format!("{field} is not in the head"));
    }
    if answer.head.contains("application/json") {
        let [told, is] = [exchange.answer, &answer.body].map(|text| serde_json::from_str::<Value>(text).unwrap());
        differs(&told, &is, "")
    } else if answer.head.contains("openmetrics") {
        let series = |line: &str| line.rsplit_once(' ').unwrap().0.to_owned();
        let there: BTreeSet<String> = answer.body.lines().map(series).collect();
        exchange.answer.lines().map(series).find(|told| !there.contains(told)).map(|told| format!("there is no {told}"))
    } else {
        (answer.body.trim_end() != exchange.answer.trim_end()).then(|| "the text is another".to_owned())
    }
}

/// Where what is answered differs from what is told.
fn differs(told: &Value, is: &Value, at: &str) -> Option<String> {
    let name = at.rsplit('.').next().unwrap_or_default();
    match (told, is) {
        (Value::Object(told), Value::Object(is)) => {
            let names = |object: &serde_json::Map<String, Value>| object.keys().cloned().collect::<BTreeSet<_>>();
            let (told_names, is_names) = (names(told), names(is));
            if told_names != is_names && !told_names.contains(REST) {
                return Some(format!("{at} has {is_names:?}"));
            }
            let told = told.iter().filter(|(name, _)| *name != REST);
            told.map(|(name, value)| differs(value, is.get(name).unwrap_or(&Value::Null), &format!("{at}.{name}")))
                .find_map(|fault| fault)
        }
        (Value::Array(told), Value::Array(is)) if told.len() == is.len() => {
            told.iter().zip(is).find_map(|(told, is)| differs(told, is, &format!("{at}[]")))
        }
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) if VOLATILE.contains(&name) => None,
        _ => (told != is).then(|| format!("{at} is {is}")),
    }
}

#[test]
fn every_request_of_the_page_is_answered_as_it_says() {
    let (page, mut running, mut tried) = (page(), None, 0);
    for block in blocks(&page) {
        match block {
            Block::Config(config) => running = Some(Running::start(config)),
            Block::Changed(config) => running.as_ref().unwrap().change(config),
            Block::Exchange(exchange) => {
                let running: &Running = running.as_ref().unwrap();
                let mut last = None;
                let mut as_told = || {
                    let answer = running.send(&exchange);
                    let fault = fault(&exchange, &answer);
                    let right = fault.is_none();
                    last = Some((fault, answer));
                    right
                };
                // What is only looked at may take a moment to become so: what is done is done once.
                let right = if exchange.method == "GET" && exchange.target != "/metrics" {
                    patiently(&mut as_told)
                } else {
                    as_told()
                };
                assert!(right, "{exchange:#?}\n{last:#?}\n{}", running.service.log());
                tried += 1;
            }
        }
    }
    assert!(tried > 20, "{tried}");
}

fn patiently(as_told: &mut impl FnMut() -> bool) -> bool {
    let begun = std::time::Instant::now();
    eventually("the answer is as told, or it is late", || {
        let right = as_told();
        (right || begun.elapsed() > std::time::Duration::from_secs(10)).then_some(right)
    })
}

/// The list of pages that an unknown path is answered with is in the page, word for word; so each of it must be told.
#[test]
fn the_page_has_a_section_and_an_example_of_every_request_that_there_is() {
    let page = page();
    let (listed, there) = (
        exchanges(&page).into_iter().find(|exchange| exchange.status == 404).unwrap().answer,
        page.lines().filter_map(|line| line.strip_prefix("## ")).collect::<BTreeSet<_>>(),
    );
    let mut told = 0;
    for group in listed.trim_start_matches("there are ").split(';') {
        let (method, paths) = group.trim().split_once(' ').unwrap();
        for path in paths.split(", ") {
            let path = path.trim().split('[').next().unwrap().replace("{user|key|ip}", "{dimension}");
            let title = format!("{method} {path}");
            assert!(there.contains(title.as_str()), "no section {title}");
            let start = path.split('{').next().unwrap().to_owned();
            let shown = |exchange: &Exchange<'_>| {
                exchange.method == method && exchange.target.starts_with(&start) && exchange.status == 200
            };
            assert!(exchanges(&page).iter().any(shown), "no example of {title}");
            told += 1;
        }
    }
    assert_eq!(told, 10);
}

fn exchanges(page: &str) -> Vec<Exchange<'_>> {
    let all = blocks(page).into_iter();
    all.filter_map(|block| if let Block::Exchange(exchange) = block { Some(exchange) } else { None }).collect()
}

#[test]
fn an_answer_that_differs_from_the_page_is_found() {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let told = value(r#"{"hash": "a", "limits": [{"tier": "free"}]}"#);
    for (is, fault) in [
        (r#"{"hash": "b", "limits": [{"tier": "free"}]}"#, None),
        (r#"{"hash": 1, "limits": [{"tier": "free"}]}"#, Some(".hash is 1")),
        (r#"{"hash": "b", "limits": [{"tier": "gold"}]}"#, Some(r#".limits[].tier is "gold""#)),
        (r#"{"hash": "b", "limits": []}"#, Some(".limits is []")),
        (r#"{"limits": [{"tier": "free"}]}"#, Some(r#" has {"limits"}"#)),
    ] {
        assert_eq!(differs(&told, &value(is), "").as_deref(), fault, "{is}");
    }
}
