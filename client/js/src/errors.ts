/**
 * A call that failed. `status` and `code` are the node's, such as 404 and "unknown-rule"; without an answer of a node the status is 0
 * and the code is one of "invalid", "timeout", "unavailable", "queue-full", "bad-answer" and "closed".
 */
export class RlnodeError extends Error {
  override readonly name = "RlnodeError";
  constructor(
    readonly status: number,
    readonly code: string,
    /** A sentence for people. */
    readonly detail: string,
    /** The address of the node that answered, or failed to. */
    readonly node = "",
    cause?: unknown,
  ) {
    super(`rlnode: ${node} ${status || ""} ${code}: ${detail}`.replace(/ +/g, " "), { cause });
  }
}
