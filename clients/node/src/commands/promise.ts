export type MaybePromise<T> = T | PromiseLike<T>;

/** Whether a value is still to come: to wait for one that is there would cost a turn of the event loop. */
export function isPromise<T>(value: MaybePromise<T>): value is PromiseLike<T> {
  return typeof (value as Partial<PromiseLike<T>> | null | undefined)?.then === "function";
}
