//! TLS of the listeners: files and SPIFFE ids -> what is shown and asked of clients.

use super::text::each;
use crate::config::env::Files;
use crate::config::fault::{Report, field, quoted};
use crate::config::raw;
use crate::server::tls::spiffe::{Pattern, PatternError};
use crate::server::tls::{Finding, Listener, Part, Tls, TlsFiles};
use std::path::Path;

/// The longest certificate or key that is read, in bytes.
const MAX_PEM: usize = 1 << 20;

/// The outer `None`: there are faults. The inner: plain text. `base` is the path of the section.
pub(super) fn tls(
    base: &str,
    listener: Listener,
    raw: Option<&raw::ListenTls>,
    files: Files,
    report: &mut Report,
) -> Option<Option<Tls>> {
    let Some(raw) = raw else {
        return Some(None);
    };
    let before = report.faults.len();
    let ids = ids(base, raw, report);
    let cert = needed(base, "cert", raw.cert.as_deref(), report);
    let key = needed(base, "key", raw.key.as_deref(), report);
    let client_ca = raw.client_ca.as_deref().and_then(|file| stated(base, "client_ca", file, report));
    if files == Files::LeaveAside {
        return (report.faults.len() == before).then_some(Some(Tls::unread()));
    }
    // Where one cannot be read, the others are looked at all the same.
    let mut read = |name: &str, file: &str| pem(&field(base, name), file, report).unwrap_or_default();
    let files = TlsFiles {
        cert: cert.map(|file| read("cert", file)).unwrap_or_default(),
        key: key.map(|file| read("key", file)).unwrap_or_default(),
        client_ca: client_ca.map(|file| read("client_ca", file)),
    };
    match Tls::prove(listener, &files, ids.as_deref()) {
        Ok((tls, warnings)) => {
            told(base, warnings, |path, text| report.warn(path, text));
            (report.faults.len() == before).then_some(Some(tls))
        }
        Err(faults) => {
            // Of a path that has a fault already the second is a consequence, and is not told.
            told(base, faults, |path, text| report.fault(path, text));
            None
        }
    }
}

fn told(base: &str, findings: Vec<Finding>, mut tell: impl FnMut(String, String)) {
    for Finding { part, text } in findings {
        let name = match part {
            Part::Cert => "cert",
            Part::Key => "key",
            Part::ClientCa => "client_ca",
        };
        tell(field(base, name), text);
    }
}

fn needed<'f>(base: &str, name: &str, file: Option<&'f str>, report: &mut Report) -> Option<&'f str> {
    let Some(file) = file else {
        report.fault(field(base, name), "is missing; write the path of a file in PEM");
        return None;
    };
    stated(base, name, file, report)
}

/// The path of a file, if it is one.
fn stated<'f>(base: &str, name: &str, file: &'f str, report: &mut Report) -> Option<&'f str> {
    if file.is_empty() || file.contains("-----BEGIN") {
        let what = if file.is_empty() { "is empty" } else { "holds PEM itself" };
        report.fault(field(base, name), format!("{what}; write the path of a file in PEM"));
        return None;
    }
    Some(file)
}

/// A file's content.
pub(super) fn pem(path: &str, file: &str, report: &mut Report) -> Option<Vec<u8>> {
    let fault = match report.files.read(Path::new(file), MAX_PEM) {
        Ok(pem) if pem.len() <= MAX_PEM => return Some(pem),
        Ok(_) => format!("is longer than {MAX_PEM} bytes"),
        Err(error) => format!("cannot be read: {error}"),
    };
    report.fault(path, format!("{} {fault}", quoted(file)));
    None
}

/// `None`: all whom `client_ca` vouches for.
fn ids(base: &str, raw: &raw::ListenTls, report: &mut Report) -> Option<Vec<Pattern>> {
    let list = raw.client_spiffe_ids.as_ref()?;
    let path = field(base, "client_spiffe_ids");
    let mut ids = Vec::new();
    if list.len() == 0 {
        report.fault(path.as_str(), "is empty, which would let nobody in; name an id, or leave it out");
    } else if raw.client_ca.is_none() {
        report.fault(path.as_str(), "goes with client_ca only, which says whose certificates state ids");
    }
    each(&path, Some(list), report, |path, text, report| match text.parse() {
        Ok(id) => ids.push(id),
        Err(why @ (PatternError::NoId | PatternError::Star)) => report.fault(path, format!("{} {why}", quoted(text))),
    });
    Some(ids)
}
