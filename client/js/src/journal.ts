import { now } from "./clock.js";

/** How much a line of the log matters. */
export type Level = "info" | "warn" | "error";

/** A log. Without one of the user's, it is the console. */
export type Log = (message: string, level: Level) => void;

const pause = 60_000; // ms between two lines about the same

/** Journal logs each kind of line at most once a minute. */
export class Journal {
  readonly #said = new Map<string, number>(); // when, by what a line is about
  readonly #over = new Set<string>(); // of what was said, what is over

  constructor(private readonly log: Log = (message, level) => console[level](message)) {}

  /** say logs a line about something, and returns whether it did. */
  say(level: Level, about: string, message: string): boolean {
    const at = now();
    if (at - (this.#said.get(about) ?? -Infinity) < pause) return false;
    this.#said.set(about, at);
    this.#over.delete(about);
    this.log("rlnode: " + message.replace(": rlnode: ", ": "), level);
    return true;
  }

  /** unsay logs that what was said about something is over, unless nothing was said since the last time. */
  unsay(about: string, message: string): void {
    if (this.#over.has(about) || !this.#said.has(about)) return;
    this.#over.add(about);
    this.log("rlnode: " + message, "info");
  }
}
