// Hash slots: on a cluster, all keys of a slot are on the same node.

import type { Key } from "../commands/commands.js";

/** The hash slot of a key, from 0 to 16383: that of its hash tag, if it has one. */
export function slotOf(key: Key): number {
  const bytes = Buffer.from(key);
  const begin = bytes.indexOf("{") + 1;
  const end = begin > 0 ? bytes.indexOf("}", begin) : 0;
  return crc16(end > begin ? bytes.subarray(begin, end) : bytes) % 16_384;
}

/** CRC-16/XMODEM, as in the cluster specification of Redis. */
function crc16(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc;
}
