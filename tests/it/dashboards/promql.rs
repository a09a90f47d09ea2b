//! Reads what an expression of PromQL names: metrics, labels and values of labels. Whether it is one is promtool's to say.

use std::collections::BTreeSet;

/// The names in an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub selectors: Vec<Selector>,
    /// Labels that results are grouped or matched by.
    pub grouped: BTreeSet<String>,
    /// Names with a colon: those of recording rules.
    pub recorded: BTreeSet<String>,
}

/// A metric of this service, and the labels that it is narrowed by.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub labels: Vec<(String, String)>,
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Reads an expression, or a line of the exposition format, which looks like a selector.
pub fn read(expression: &str) -> Named {
    let (mut named, tokens) = (Named::default(), tokens(expression));
    for (at, token) in tokens.iter().enumerate() {
        let (Token::Word(word), rest) = (token, &tokens[at + 1..]) else { continue };
        if word.contains(':') {
            named.recorded.insert(word.clone());
        } else if word.starts_with("tidegate_") {
            named.selectors.push(Selector { metric: word.clone(), labels: labels(rest) });
        } else if GROUPING.contains(&word.as_str()) {
            named.grouped.extend(words(rest));
        }
    }
    named
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

fn tokens(expression: &str) -> Vec<Token> {
    let (mut tokens, mut rest) = (Vec::new(), expression);
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => {
                let end = rest[1..].find('"').unwrap_or_else(|| panic!("a text does not end in {expression}"));
                tokens.push(Token::Text(rest[1..=end].to_owned()));
                end + 2
            }
            _ if in_word(first) => {
                let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..end].to_owned()));
                end
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(Token::Sign(first));
                }
                first.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    tokens
}

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// `{a="b",c=~"d|e"}`
fn labels(tokens: &[Token]) -> Vec<(String, String)> {
    let Some((Token::Sign('{'), rest)) = tokens.split_first() else { return Vec::new() };
    let mut labels: Vec<(String, String)> = Vec::new();
    for token in rest {
        match token {
            Token::Word(name) => labels.push((name.clone(), String::new())),
            Token::Text(value) => labels.last_mut().unwrap().1.clone_from(value),
            Token::Sign('}') => break,
            Token::Sign(_) => {}
        }
    }
    labels
}

/// `(a, b)`
fn words(tokens: &[Token]) -> Vec<String> {
    let Some((Token::Sign('('), rest)) = tokens.split_first() else { return Vec::new() };
    let inside = rest.iter().take_while(|token| **token != Token::Sign(')'));
    inside.filter_map(|token| if let Token::Word(word) = token { Some(word.clone()) } else { None }).collect()
}

#[test]
fn names_are_read_wherever_they_stand() {
    let named = read(
        r#"sum by (tier, le) (rate(tidegate_a_total{x="1",y=~"b|c"}[5m])) / on (job) group_left () tidegate_b
            > 2 * (job:tidegate_c:share offset 1h) and histogram_quantile(0.9, rate(tidegate_d_bucket[$__rate_interval]))"#,
    );
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let selector = |metric: &str, labels| Selector { metric: metric.to_owned(), labels };
    let expected = [
        selector("tidegate_a_total", vec![pair("x", "1"), pair("y", "b|c")]),
        selector("tidegate_b", vec![]),
        selector("tidegate_d_bucket", vec![]),
    ];
    assert_eq!(named.selectors, expected);
    assert_eq!(named.grouped, ["job", "le", "tier"].map(str::to_owned).into());
    assert_eq!(named.recorded, ["job:tidegate_c:share".to_owned()].into());
}
