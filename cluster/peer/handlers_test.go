package peer

import (
	"errors"
	"testing"
)

// A call of a method without a handler fails with CodeNoMethod, and so does a
// call from another region of a method that only this region may call.
func TestMethodsWithoutHandler(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b, c := w.node(1, inRegion("eu", 1, nil)), w.node(2, inRegion("eu", 1, nil)), w.node(3,
			inRegion("us", 2, nil))
		a.knows(b)
		a.knowsFar(c)
		w.connected(a, b)
		w.connected(a, c)
		b.handlers[Near][methodEcho] = nil
		c.handlers[Far][methodEcho] = nil
		for _, to := range []*node{b, c} {
			_, err := a.Call(t.Context(), to.id, methodEcho, []byte("x"))
			if remote, ok := errors.AsType[*RemoteError](err); !ok || remote.Code != CodeNoMethod {
				t.Errorf("have %v, want a failure with code %d", err, CodeNoMethod)
			}
		}
	})
}

func TestTwoHandlersForOneMethod(t *testing.T) {
	var p Peers
	p.Handle(1, Near, func(*Call) {})
	p.Handle(1, Far, func(*Call) {})
	defer func() {
		if recover() == nil {
			t.Error("the second handler is accepted")
		}
	}()
	p.Handle(1, Near, func(*Call) {})
}
