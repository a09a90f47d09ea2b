//! What a verified token says of its bearer, as far as somebody asked: claims by their paths, as text.
//!
//! Knows no token and no signature: whoever makes [`Claims`] has verified them.

use super::request::Scalar;
use std::fmt;

/// The names that lead to a claim, such as `[realm, sub]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Vec<String>);

/// The claims that were asked for and can name someone. Nothing else of a token is kept.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Claims(Box<[(ClaimPath, Box<[u8]>)]>);

impl Claims {
    /// Keeps what `read` finds at `paths`.
    pub fn pick<'p, 's>(
        paths: impl IntoIterator<Item = &'p ClaimPath>,
        read: impl Fn(&ClaimPath) -> Option<Scalar<'s>>,
    ) -> Self {
        let text = |path: &ClaimPath| Some((path.clone(), read(path)?.text()?.into()));
        Self(paths.into_iter().filter_map(text).collect())
    }

    /// The text of a claim; `None` too for one that was not asked for.
    pub fn find(&self, path: &ClaimPath) -> Option<&[u8]> {
        self.0.iter().find(|(there, _)| there == path).map(|(_, text)| &**text)
    }
}

/// Tells which and not what: claims are identities.
impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(path, _)| path)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> ClaimPath {
        ClaimPath(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn only_what_was_asked_for_and_can_name_someone_is_kept_and_never_shown() {
        let asked = [path(&["sub"]), path(&["realm", "id"]), path(&["rate"]), path(&["none"])];
        let claims = Claims::pick(&asked, |path| match path.0[0].as_str() {
            "sub" => Some(Scalar::Text(b"alice")),
            "realm" => Some(Scalar::Number(7.0)),
            "rate" => Some(Scalar::Number(0.5)),
            _ => None,
        });
        assert_eq!(claims.find(&path(&["sub"])), Some(&b"alice"[..]));
        assert_eq!(claims.find(&path(&["realm", "id"])), Some(&b"7"[..]));
        for absent in [&["rate"][..], &["none"], &["realm"], &["iss"]] {
            assert_eq!(claims.find(&path(absent)), None);
        }
        assert!(!format!("{claims:?}").contains("alice"));
    }
}
