export { RlnodeClient, type CallOptions, type ClientOptions, type OnError, type OnRejected } from "./client.js";
export { RefusedError, type Slot } from "./slot.js";
export type { DecidedBy, Decision, Holder, LimitDecision, LimitUsage, Rate, Refusal, Reservation, Settlement, Usage } from "./decision.js";
export type { Level, Log } from "./journal.js";
export { RequestError, RlnodeError } from "./errors.js";
export type { AcquireRequest, AdjustRequest, CheckRequest, Costs, Limit, Mode, ReserveRequest, ResetRequest, Subject, Target, Value } from "./request.js";
