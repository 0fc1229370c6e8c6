// What error replies say about the server that sent them.

/**
 * What follows from a reply. "elsewhere": this server cannot answer, and by now another may be at its address.
 * "refused": it rejects this package. "cannot": it cannot count at present. "ok": the reply concerns only the request.
 */
export type Means = "elsewhere" | "refused" | "cannot" | "ok";

export interface Known {
  /** The text that the reply begins with. */
  readonly starts: string;
  readonly means: Means;
  /** What an operator can do about it. */
  readonly log: string;
}

/** The same table as `clients/errors.json`. The first entry that matches counts. */
// prettier-ignore
export const ERRORS: readonly Known[] = [
  { starts: "NOPERM this user has no permissions to access one of the keys", means: "ok", log: "" },
  { starts: "NOPERM No permissions to access a key", means: "ok", log: "" },
  { starts: "READONLY", means: "elsewhere", log: "this server is a replica: use an address that follows the master, or Sentinel" },
  { starts: "MASTERDOWN", means: "elsewhere", log: "this server is a replica without its master: use an address that follows the master, or Sentinel" },
  { starts: "LOADING", means: "elsewhere", log: "the server is still loading its data" },
  { starts: "NOAUTH", means: "refused", log: "the server asks for a password: name one in the client's address or options" },
  { starts: "WRONGPASS", means: "refused", log: "the user or the password is wrong, or the user is disabled" },
  { starts: "ERR AUTH", means: "refused", log: "a password is given, and the server has none: leave it out, or set requirepass" },
  { starts: "NOPERM", means: "refused", log: "the user lacks a right that the reply names: add it by ACL SETUSER" },
  { starts: "DENIED", means: "refused", log: "the server is in protected mode: give it a password, or bind it to an address" },
  { starts: "ERR max number of clients", means: "refused", log: "the server has too many connections: raise maxclients, or find who holds them" },
  { starts: "ERR unknown command 'RL.BUCKET'", means: "refused", log: "the server has not loaded the redis-rl module, or one older than this package: load the newest" },
  { starts: "ERR unknown command", means: "refused", log: "the server has not loaded the redis-rl module: load it, also on replicas that may become masters" },
  { starts: "ERR This instance has cluster support disabled", means: "refused", log: "the server is not part of a cluster: use a client for one server" },
  { starts: "MOVED", means: "refused", log: "the server is part of a cluster: use a client for clusters" },
  { starts: "CROSSSLOT", means: "refused", log: "the server is part of a cluster: use a client for clusters" },
  { starts: "OOM", means: "cannot", log: "the server has reached maxmemory: raise it, or free memory" },
  { starts: "MISCONF", means: "cannot", log: "the server cannot write to its disk: make room, and see its log" },
  { starts: "NOREPLICAS", means: "cannot", log: "the server has fewer replicas than min-replicas-to-write: bring them back, or lower it" },
  { starts: "BUSY ", means: "cannot", log: "a script keeps the server busy: SCRIPT KILL or FUNCTION KILL ends it" },
  { starts: "CLUSTERDOWN", means: "cannot", log: "the cluster has slots that no node serves: see CLUSTER INFO" },
];

/** Whether an error is a reply of the server: such replies begin with a word in capitals. */
export function isReply({ message }: Error): boolean {
  return /^[A-Z][A-Z0-9_]+ /.test(message);
}

/** Whether a node of a cluster says that another one has the key. It has done nothing then. */
export function isRedirection({ message }: Error): boolean {
  return /^(MOVED|ASK|TRYAGAIN) /.test(message);
}

/** The entry for an error reply; undefined if it concerns only the request, or is no reply of the server. */
export function knownError({ message }: Error): Known | undefined {
  const known = ERRORS.find(({ starts }) => message.startsWith(starts));
  return known?.means === "ok" ? undefined : known;
}

/** Whether an error means that Redis is away: there was no reply, or the reply says so. */
export function isAway(error: Error): boolean {
  return !isReply(error) || knownError(error) !== undefined;
}
