// Package wake wakes a goroutine through a channel that holds at most one signal.
package wake

// Signal sends to a channel of capacity 1 without blocking: one signal that
// waits stands for all later ones.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
