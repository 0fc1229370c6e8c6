//! Whom a request comes from, and the route that it takes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use http::request::Parts;
use http::{Extensions, HeaderMap};

/// The address of the peer, which the web server has put among the extensions.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// The pattern of the route that a framework has chosen, such as `/users/{id}`.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(pub String);

/// The pattern of a request's route, if the framework tells it. The method is the client's own choice, so it names nothing.
/// `/users/{id}` becomes `/users/:id`, since braces in a key would choose its slot.
pub(crate) fn route(head: &Parts) -> Option<String> {
    let pattern = head.extensions.get().map(|Pattern(pattern)| pattern.as_str());
    #[cfg(feature = "axum")]
    let pattern = pattern.or_else(|| Some(head.extensions.get::<axum::extract::MatchedPath>()?.as_str()));
    let pattern = pattern.filter(|pattern| pattern.bytes().all(|byte| byte.is_ascii_graphic()))?;
    Some(pattern.replace('{', ":").replace('}', ""))
}

/// Stands in place of an address that is not known.
pub(crate) const UNKNOWN: &str = "unknown";

/// The network address of a client: the one that the outermost of your `proxies` saw, or with 0 proxies the peer's.
///
/// Addresses in `X-Forwarded-For` are counted from the right: what stands further left is the client's own claim. If
/// `proxies` is too large, clients can choose their address. Where they log in, use the account instead.
///
/// An IPv6 address is cut to its /64, since a client may use any address of its network.
///
/// It is `unknown` if there is no address, as over a unix socket.
pub fn client_address(peer: impl Into<Option<IpAddr>>, headers: &HeaderMap, proxies: usize) -> String {
    let fields = headers.get_all("x-forwarded-for").into_iter();
    // Bytes of a client that are no text must not hide what a proxy has added behind them.
    let claims: Vec<_> = fields.map(|field| String::from_utf8_lossy(field.as_bytes())).collect();
    let claims = claims.join(",");
    let hops = claims.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty());
    match hops.take(proxies).last() {
        Some(hop) => address(hop).map_or_else(|| hop.to_owned(), network),
        None => peer.into().map_or_else(|| UNKNOWN.to_owned(), network),
    }
}

/// Reads an address as proxies write it, perhaps with a port, brackets or a zone.
fn address(text: &str) -> Option<IpAddr> {
    let host = match text.strip_prefix('[') {
        Some(text) => text.split_once(']')?.0,
        None => text.parse().map_or(text, |_: SocketAddrV4| text.split(':').next().unwrap_or(text)),
    };
    host.split('%').next()?.parse().ok()
}

fn network(address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(address) => return address.to_string(),
        IpAddr::V6(address) => address,
    };
    match embedded(address) {
        Some(address) => address.to_string(),
        None => format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// The IPv4 address that an IPv6 address stands for: mapped, translated, compatible, or by NAT64.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    /// The first 96 bits of `64:ff9b::/96`.
    const NAT64: u128 = 0x0064_ff9b << 64;
    let (prefix, bits) = (address.to_bits() >> 32, address.to_bits() as u32);
    let stands_for_one = match prefix {
        0xffff | 0xffff_0000 | NAT64 => true,
        // `::1` and other small numbers are IPv6 addresses of their own.
        0 => bits > 0xffff,
        _ => false,
    };
    stands_for_one.then(|| Ipv4Addr::from_bits(bits))
}
