package peer

// Scope says whose messages a handler answers.
type Scope uint8

const (
	Near      Scope = iota // from nodes of this region
	Far                    // from nodes of other regions
	numScopes = 2
)

// CodeNoMethod means that the node has no such method for callers of that
// scope, and has done nothing.
const CodeNoMethod Code = 201

// handlers holds the handlers by method; nil if there is none.
type handlers [1 << 8]func(*Call)

// Handle registers the handler of a method for messages from nodes of a scope.
// The handler runs on the connection's reader, so it must not block. Handlers
// must be registered between New and Start, one for each method and scope.
func (p *Peers) Handle(m Method, s Scope, handler func(*Call)) {
	if p.handlers[s][m] != nil {
		panic("peer: two handlers for one method") // a programming error that shows at every start
	}
	p.handlers[s][m] = handler
}

// dispatch passes a message to its handler.
func (h *handlers) dispatch(call *Call) {
	handler := h[call.Method]
	if handler == nil {
		call.Fail(CodeNoMethod, "this node does not know the method, or other regions may not call it")
		return
	}
	handler(call)
}
