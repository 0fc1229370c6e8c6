//! Who the client is.

use std::net::IpAddr;

use http::HeaderMap;

/// The network address that the outermost of so many proxies of your own saw; with none, the peer's.
///
/// It is counted from the right in `X-Forwarded-For`: what stands further left is the client's own claim. With too
/// large a number a client could choose whom it is taken for. Where clients log in, name the account instead.
pub fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: usize) -> String {
    let fields = headers.get_all("x-forwarded-for").into_iter();
    let claims: Vec<&str> = fields.filter_map(|field| field.to_str().ok()).collect();
    let claims = claims.join(",");
    let hops = claims.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty());
    match hops.take(proxies).last() {
        Some(hop) => hop.to_owned(),
        None => peer.to_string(),
    }
}
