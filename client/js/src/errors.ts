/**
 * A call that failed. `httpStatus` and `code` are the node's, such as 404 and "unknown-rule"; without an answer of a node the status is
 * 0 and the code is one of "invalid", "timeout", "unavailable", "queue-full", "bad-answer" and "closed". (It is not called `status`,
 * since frameworks would answer their own callers with that.)
 */
export class RlnodeError extends Error {
  override readonly name: string = "RlnodeError";
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

/** A call that no node could decide, so that nothing is sent. The message names the field. The code is "invalid" or "missing-key". */
export class RequestError extends RlnodeError {
  override readonly name = "RequestError";
  constructor(detail: string, code = "invalid") {
    super(0, code, detail);
  }
}
