// Which client a network address stands for.

import { isIPv4, isIPv6 } from "node:net";
import { warnOnce } from "./warning.js";

/** The first six groups of IPv6 addresses whose last two groups are an IPv4 address. */
const IPV4_PREFIXES = ["0:0:0:0:0:ffff", "0:0:0:0:ffff:0", "64:ff9b:0:0:0:0", "0:0:0:0:0:0"];

/**
 * The client with this address, which may include a port. An IPv4 address stands for one client, also if it is written
 * as IPv6. An IPv6 client owns a whole network, so it is named by the first 64 bits. All clients without an address are
 * the client `unknown`.
 */
export function clientAddress(address: string | undefined | null): string {
  if (!address) {
    warnOnce(
      "a client has no address, as on a unix socket: all such clients share a quota, unless the guard has a key, as in { key: (request) => request.headers.authorization }",
    );
    return "unknown";
  }
  const [, ipv6, ipv4] = /^\[(.*)\](?::\d+)?$|^([\d.]+):\d+$/.exec(address) ?? [];
  const bare = (ipv6 ?? ipv4 ?? address).replace(/%.*/, "");
  if (isIPv4(bare)) return bare;
  if (!isIPv6(bare)) return address;
  const groups = groupsOf(bare);
  const [high, low] = groups.slice(6).map((group) => Number.parseInt(group, 16)) as [number, number];
  // `::1` has the form of an IPv4 address, but is not one.
  if (IPV4_PREFIXES.includes(groups.slice(0, 6).join(":")) && high > 0) {
    return [high >> 8, high & 255, low >> 8, low & 255].join(".");
  }
  return `${spelled(`${groups.slice(0, 4).join(":")}::`)}/64`;
}

/** The canonical spelling of an IPv6 address, which `URL` produces. */
function spelled(ipv6: string): string {
  return new URL(`http://[${ipv6}]`).hostname.slice(1, -1);
}

function groupsOf(ipv6: string): string[] {
  const [head, tail] = spelled(ipv6)
    .split("::")
    .map((part) => part.split(":").filter(Boolean)) as [string[], string[]?];
  const zeros = tail ? Array<string>(8 - head.length - tail.length).fill("0") : [];
  return [...head, ...zeros, ...(tail ?? [])];
}
