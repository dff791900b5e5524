//go:build !linux

package httpd

// canSeeHangUps says whether hungUp finds anything.
const canSeeHangUps = false

// hungUp always returns nil: here the node notices that a caller has hung up
// only when it sends the answer.
func hungUp([]*waiter) []*waiter { return nil }

// awaitReset always returns false.
func awaitReset(*waiter) bool { return false }

// hasUnreadInput returns true: the caller may have sent something that is still unread.
func hasUnreadInput(*waiter) bool { return true }
