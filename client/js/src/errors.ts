/**
 * A call that failed. `httpStatus` and `code` are the node's, such as 404 and "unknown-rule"; without an answer of a node the status is
 * 0 and the code is one of "invalid", "timeout", "unavailable", "queue-full", "bad-answer" and "closed". (It is not called `status`,
 * since frameworks would answer their own callers with that.)
 */
export class RlnodeError extends Error {
  override readonly name = "RlnodeError";
  constructor(
    readonly httpStatus: number,
    readonly code: string,
    /** A sentence for people. */
    readonly detail: string,
    /** The address of the node that answered, or failed to. */
    readonly node = "",
    cause?: unknown,
  ) {
    super(`rlnode: ${node} ${httpStatus || ""} ${code}: ${detail}`.replace(/ +/g, " "), { cause });
  }
}
