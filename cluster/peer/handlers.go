package peer

// Scope says whose messages a handler answers.
type Scope uint8

// The scopes.
const (
	Near   Scope = iota // of nodes of this region
	Far                 // of nodes of other regions
	scopes = 2
)

// CodeNoMethod: the node knows no such method from there, and has done nothing.
const CodeNoMethod Code = 201

// handlers answer messages, by method; nil: nobody does.
type handlers [1 << 8]func(*Call)

// Handle has a function answer the messages of one method that come from nodes of a scope. It runs on the connection's
// reader and must not block. Handlers are registered between New and Start, one for each method and scope.
func (p *Peers) Handle(m Method, s Scope, handler func(*Call)) {
	if p.handlers[s][m] != nil {
		panic("peer: two handlers for one method") // a mistake in the source, which each start of a node shows
	}
	p.handlers[s][m] = handler
}

// serve brings a message to its handler.
func (h *handlers) serve(call *Call) {
	handler := h[call.Method]
	if handler == nil {
		call.Fail(CodeNoMethod, "this node does not know the method, or other regions may not call it")
		return
	}
	handler(call)
}
