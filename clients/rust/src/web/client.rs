//! Who the client is.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderMap;
use http::request::Parts;

/// The address that a request came from: the server has put it among the extensions.
pub(crate) fn peer(head: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) =
        head.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    head.extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// The network address that the outermost of so many proxies of your own saw; with none, the peer's.
///
/// It is counted from the right in `X-Forwarded-For`: what stands further left is the client's own claim. With too
/// large a number a client could choose whom it is taken for. Where clients log in, name the account instead.
///
/// An IPv6 client has a whole network, of which 64 bits are named.
pub fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: usize) -> String {
    let fields = headers.get_all("x-forwarded-for").into_iter();
    let claims: Vec<&str> = fields.filter_map(|field| field.to_str().ok()).collect();
    let claims = claims.join(",");
    let hops = claims.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty());
    match hops.take(proxies).last() {
        Some(hop) => hop.parse().map_or_else(|_| hop.to_owned(), network),
        None => network(peer),
    }
}

fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}
