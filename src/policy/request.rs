//! A request as the policy sees it: borrowed bytes, whatever protocol they came in.
//!
//! Everything here but `id`, `extensions`, `peer`, `principal`, `metadata` and `claims` was written by the client.

use super::claims::Claims;
use std::borrow::Cow;
use std::fmt::Debug;

/// Names and values.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// One HTTP request, as Envoy describes it. Absent text is empty.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Envoy's name for the client's request: the same when Envoy asks again about the same request.
    pub id: &'a [u8],
    pub method: &'a [u8],
    pub host: &'a [u8],
    /// With its query.
    pub path: &'a [u8],
    /// Names in lower case, as Envoy sends them.
    pub headers: Pairs<'a>,
    /// Envoy's `context_extensions`: set by the operator on the route, and so trusted.
    pub extensions: Pairs<'a>,
    /// The address of the TCP peer; `None` when the peer has none (a unix socket).
    pub peer: Option<&'a [u8]>,
    /// The identity in the client's verified certificate.
    pub principal: &'a [u8],
    pub metadata: Option<&'a dyn Metadata>,
    /// Of a token that was verified; `None` where there is none, or it is not to be believed.
    pub claims: Option<&'a Claims>,
}

/// Dynamic metadata that earlier Envoy filters left: trusted as far as the filter that wrote it.
pub trait Metadata: Debug + Sync {
    /// The scalar at `path` inside `namespace`.
    fn find(&self, namespace: &str, path: &[String]) -> Option<Scalar<'_>>;
}

/// A value that can name someone. Structures, lists, booleans and null cannot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    Text(&'a [u8]),
    Number(f64),
}

impl<'a> Scalar<'a> {
    /// As text. Numbers count only where a double holds every integer (up to 2^53): beyond, two callers might read
    /// alike.
    pub fn text(self) -> Option<Cow<'a, [u8]>> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Number(number) if number.fract() == 0.0 && number.abs() < EXACT => {
                Some(Cow::Owned(format!("{}", number as i64).into_bytes()))
            }
            Self::Number(_) => None,
        }
    }
}

impl<'a> Request<'a> {
    /// The value of a header; several of one name are joined with `,`, as Envoy joins them.
    pub fn header(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        let mut values = self.headers.iter().filter(|(n, _)| *n == name.as_bytes()).map(|(_, value)| *value);
        let first = values.next()?;
        let Some(second) = values.next() else {
            return Some(Cow::Borrowed(first));
        };
        let mut joined = first.to_vec();
        for value in [second].into_iter().chain(values) {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(Cow::Owned(joined))
    }

    /// The value of a context extension.
    pub fn extension(&self, name: &str) -> Option<&'a [u8]> {
        self.extensions.iter().find(|(n, _)| *n == name.as_bytes()).map(|(_, value)| *value)
    }

    /// The path without query and fragment.
    pub fn bare_path(&self) -> &'a [u8] {
        let end = self.path.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(self.path.len());
        &self.path[..end]
    }

    /// Whether the client speaks gRPC, and so reads `grpc-status`. gRPC-Web and Connect do not.
    pub fn is_grpc(&self) -> bool {
        self.header("content-type")
            .is_some_and(|value| *value == *b"application/grpc" || value.starts_with(b"application/grpc+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_name_are_joined_as_envoy_joins_them() {
        let mut request = Request::default();
        request.headers.extend([(&b"a"[..], &b"1"[..]), (b"b", b"x"), (b"a", b"2"), (b"a", b"")]);
        assert_eq!(request.header("a").as_deref(), Some(&b"1,2,"[..]));
        assert_eq!(request.header("b").as_deref(), Some(&b"x"[..]));
        assert_eq!(request.header("c"), None);
    }

    #[test]
    fn only_grpc_content_types_make_a_grpc_client() {
        for (value, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
            ("", false),
        ] {
            let mut request = Request::default();
            request.headers.push((b"content-type", value.as_bytes()));
            assert_eq!(request.is_grpc(), grpc, "{value}");
        }
    }

    #[test]
    fn numbers_name_a_caller_only_where_they_are_exact() {
        assert_eq!(Scalar::Number(12345.0).text().as_deref(), Some(&b"12345"[..]));
        assert_eq!(Scalar::Number(-3.0).text().as_deref(), Some(&b"-3"[..]));
        for bad in [1.5, f64::NAN, f64::INFINITY, 9_007_199_254_740_992.0] {
            assert_eq!(Scalar::Number(bad).text(), None);
        }
    }
}
