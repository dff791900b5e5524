//go:build !linux

package httpd

// canSeeHangUps says whether pollHungUp finds anything.
const canSeeHangUps = false

// pollHungUp always returns nil: here the node notices that a caller has hung up
// only when it sends the answer.
func pollHungUp([]*heldAnswer) []*heldAnswer { return nil }

// awaitReset always returns false.
func awaitReset(*heldAnswer) bool { return false }

// hasUnreadInput returns true: the caller may have sent something that is still unread.
func hasUnreadInput(*heldAnswer) bool { return true }
