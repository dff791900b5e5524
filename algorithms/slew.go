package algorithms

// slewDivisor bounds how fast a wall clock that is ahead falls back: by 1/64 of
// the time that passes. Meanwhile, a window lasts at most 1/63 longer.
const slewDivisor = 64

// SlewedClock is how a wall clock runs from some moment on: at the pace of the
// steady clock, but slower as long as it is ahead of the clock that it follows.
// So the clock never goes back, and its windows turn at almost normal pace.
type SlewedClock struct {
	Steady, Wall int64 // readings at that moment
	Lead         int64 // how far it is ahead then; 0 or above
}

// At returns the wall clock's reading at a steady time.
func (c SlewedClock) At(steady int64) int64 {
	passed := max(0, steady-c.Steady)
	return c.Wall + passed - min(passed/slewDivisor, c.Lead)
}
