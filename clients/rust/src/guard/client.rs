//! Who the client is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use http::request::Parts;
use http::{Extensions, HeaderMap, Method};

/// The address that a request came from: the server has put it among the extensions.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// The pattern by which a framework has found the route of a request.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(pub String);

/// The method and the pattern of a request's route, if the framework tells it. `/users/{id}` is `/users/:id`: in a key,
/// braces would choose a slot.
pub(crate) fn route(head: &Parts) -> Option<(&str, String)> {
    // A `HEAD` is answered as a `GET`.
    let method = if head.method == Method::HEAD { "GET" } else { head.method.as_str() };
    let pattern = head.extensions.get().map(|Pattern(pattern)| pattern.as_str());
    #[cfg(feature = "axum")]
    let pattern = pattern.or_else(|| Some(head.extensions.get::<axum::extract::MatchedPath>()?.as_str()));
    let pattern = pattern.filter(|pattern| pattern.bytes().all(|byte| byte.is_ascii_graphic()))?;
    Some((method, pattern.replace('{', ":").replace('}', "")))
}

/// In place of an address that nobody has told.
pub(crate) const UNKNOWN: &str = "unknown";

/// The network address that the outermost of so many proxies of your own saw; with none, the peer's.
///
/// It is counted from the right in `X-Forwarded-For`: what stands further left is the client's own claim. With too
/// large a number a client could choose whom it is taken for. Where clients log in, name the account instead.
///
/// An IPv6 client has a whole network, of which 64 bits are named.
///
/// A request whose address nobody has told, as over a unix socket, is one of `unknown`.
pub fn client_address(peer: impl Into<Option<IpAddr>>, headers: &HeaderMap, proxies: usize) -> String {
    let fields = headers.get_all("x-forwarded-for").into_iter();
    let claims: Vec<&str> = fields.filter_map(|field| field.to_str().ok()).collect();
    let claims = claims.join(",");
    let hops = claims.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty());
    match hops.take(proxies).last() {
        Some(hop) => address(hop).map_or_else(|| hop.to_owned(), network),
        None => peer.into().map_or_else(|| UNKNOWN.to_owned(), network),
    }
}

/// An address as proxies write it: with a port, in brackets, with a zone.
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
    let (prefix, bits) = (address.to_bits() >> 32, address.to_bits() as u32);
    let stands_for_one = match prefix {
        0xffff | 0xffff_0000 | NAT64 => true,
        // Others of these are addresses of their own, as `::1`.
        0 => bits > 0xffff,
        _ => false,
    };
    stands_for_one.then(|| Ipv4Addr::from_bits(bits))
}

/// `64:ff9b::/96`.
const NAT64: u128 = 0x0064_ff9b << 64;
