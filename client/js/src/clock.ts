/** now is this process's own clock, in ms, by which all spans are measured: no step of the wall clock moves it. */
export const now = (): number => performance.now();
