//! The client's address: which text to believe, and how it is written in a bucket's name.

use super::request::Request;
use ipnet::{Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where the client's address is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// The TCP peer of Envoy (or the address in its PROXY header).
    #[default]
    Peer,
    /// A header that Envoy overwrites; the peer where it is missing or no address.
    Header(String),
    /// The entry of X-Forwarded-For that stands `trusted_hops` from the right, 1 being the one that Envoy itself
    /// appended; the peer where there are fewer.
    ForwardedFor { trusted_hops: usize },
}

/// How many entries of X-Forwarded-For are looked at, from the right: a chain of proxies is shorter, a flood longer.
pub const MAX_FORWARDED: usize = 20;

/// How many leading bits make a client: whoever has one address of a /64 has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// 1 to 32.
    pub ipv4: u8,
    /// 1 to 128.
    pub ipv6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { ipv4: 32, ipv6: 64 }
    }
}

/// The client's address as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientAddress {
    V4(Ipv4Addr),
    V4Net(Ipv4Net),
    V6(Ipv6Addr),
    V6Net(Ipv6Net),
    /// No usable address: one bucket for all such clients.
    Unknown,
}

impl ClientAddress {
    /// IPv4-mapped IPv6 becomes IPv4; what is beyond the prefix is cut off.
    pub fn new(address: IpAddr, prefixes: &Prefixes) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => match Ipv4Net::new(v4, prefixes.ipv4) {
                Ok(net) if prefixes.ipv4 < 32 => Self::V4Net(net.trunc()),
                _ => Self::V4(v4),
            },
            IpAddr::V6(v6) => match Ipv6Net::new(v6, prefixes.ipv6) {
                Ok(net) if prefixes.ipv6 < 128 => Self::V6Net(net.trunc()),
                _ => Self::V6(v6),
            },
        }
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V4Net(net) => net.fmt(f),
            Self::V6(address) => address.fmt(f),
            Self::V6Net(net) => net.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl AddressSource {
    /// Reads the address, always to some result.
    pub fn read(&self, request: &Request<'_>, prefixes: &Prefixes) -> ClientAddress {
        let claimed = match self {
            Self::Peer => None,
            Self::Header(name) => request.header(name).and_then(|value| parse(&value)),
            Self::ForwardedFor { trusted_hops } => {
                request.header("x-forwarded-for").and_then(|value| forwarded(&value, *trusted_hops))
            }
        };
        claimed
            .or_else(|| request.peer.and_then(parse))
            .map_or(ClientAddress::Unknown, |address| ClientAddress::new(address, prefixes))
    }
}

fn forwarded(value: &[u8], trusted_hops: usize) -> Option<IpAddr> {
    let mut entries = value.rsplit(|byte| *byte == b',').take(MAX_FORWARDED);
    parse(entries.nth(trusted_hops.checked_sub(1)?)?)
}

/// Reads an address with or without port, brackets, zone and surrounding blanks.
pub fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    // What std does not read: brackets without a port, and a zone with or without them.
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    let unzoned = inner.split_once('%').map_or(inner, |(address, _)| address);
    unzoned.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str) -> String {
        let request = Request { peer: Some(text.as_bytes()), ..Request::default() };
        AddressSource::Peer.read(&request, &Prefixes::default()).to_string()
    }

    #[test]
    fn addresses_are_stored_in_one_canonical_form() {
        for (text, expected) in [
            ("1.2.3.4", "1.2.3.4"),
            (" 1.2.3.4:8080 ", "1.2.3.4"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("[::ffff:102:304]:80", "1.2.3.4"),
            ("2001:DB8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("[fe80::1%eth0]:443", "fe80::/64"),
            ("::1", "::/64"),
            ("", "unknown"),
            ("localhost", "unknown"),
            ("1.2.3.4.5", "unknown"),
            ("1.2.3.4\n", "1.2.3.4"),
            ("01.2.3.4", "unknown"),
        ] {
            assert_eq!(stored(text), expected, "{text:?}");
        }
    }

    #[test]
    fn prefixes_are_the_operators_choice() {
        let wide = Prefixes { ipv4: 24, ipv6: 128 };
        let show = |text: &str| parse(text.as_bytes()).map(|ip| ClientAddress::new(ip, &wide).to_string());
        assert_eq!(show("1.2.3.4").as_deref(), Some("1.2.3.0/24"));
        assert_eq!(show("2001:db8::1").as_deref(), Some("2001:db8::1"));
    }

    fn hop(forwarded_for: &str, trusted_hops: usize) -> String {
        let mut request = Request { peer: Some(b"9.9.9.9"), ..Request::default() };
        request.headers.push((b"x-forwarded-for", forwarded_for.as_bytes()));
        AddressSource::ForwardedFor { trusted_hops }.read(&request, &Prefixes::default()).to_string()
    }

    #[test]
    fn hops_count_from_the_right_and_what_the_client_wrote_on_the_left_is_ignored() {
        assert_eq!(hop("6.6.6.6, 1.1.1.1,2.2.2.2", 1), "2.2.2.2");
        assert_eq!(hop("6.6.6.6, 1.1.1.1,2.2.2.2", 2), "1.1.1.1");
        assert_eq!(hop("1.1.1.1", 2), "9.9.9.9", "fewer entries than hops: the peer");
        assert_eq!(hop("", 1), "9.9.9.9");
        assert_eq!(hop("1.1.1.1, junk", 1), "9.9.9.9");
        let flood = "6.6.6.6,".repeat(100_000) + "1.1.1.1";
        assert_eq!(hop(&flood, 1), "1.1.1.1");
        assert_eq!(hop(&flood, 21), "9.9.9.9", "no more than 20 entries are looked at");
    }

    #[test]
    fn a_peer_without_an_address_is_unknown() {
        let header = AddressSource::Header("x-client-ip".into());
        assert_eq!(header.read(&Request::default(), &Prefixes::default()), ClientAddress::Unknown);
    }
}
