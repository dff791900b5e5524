export { RlnodeClient, type CallOptions, type ClientOptions, type OnError } from "./client.js";
export type { DecidedBy, Decision, LimitDecision, LimitUsage, Reservation, Settlement, Usage } from "./decision.js";
export { RlnodeError } from "./errors.js";
export type { AdjustRequest, CheckRequest, Costs, Limit, Mode, ReserveRequest, ResetRequest, Subject, Target } from "./request.js";
