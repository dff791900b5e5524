package api

// tlsMemory is what TLS takes of a connection that waits, in bytes.
const tlsMemory = 12 << 10

// minSeats is how many connections a door serves at least, however little
// memory there is.
const minSeats = 64

// Seats returns how many connections a door serves at once: bound, or fewer if
// they would take more than 1/parts of the node's memory. A connection takes
// seatBytes while it waits for a request.
func (d *Doors) Seats(bound int, parts, seatBytes int64) int {
	if d.TLS != nil {
		seatBytes += tlsMemory
	}
	switch {
	case d.MaxConnections > 0:
		return d.MaxConnections
	case d.Memory > 0:
		return int(min(int64(bound), max(minSeats, d.Memory/parts/seatBytes)))
	}
	return bound
}

// Bounds on the connections that the data plane and the Redis protocol have
// together. One that waits takes seatMemory, and all of them may take one part
// in seatParts of the node's memory.
const (
	MaxDataConnections = 32 << 10
	seatMemory         = 8 << 10
	seatParts          = 8
)

// NewConnections returns an empty set of connections for a door that serves at
// most bound at once.
func (d *Doors) NewConnections(bound int) *Connections {
	return d.newConnections(newSeatPool(bound))
}

// newConnections returns an empty set of connections whose seats are at a pool.
func (d *Doors) newConnections(at *seatPool) *Connections {
	conns := newConnections(ConnectionsConfig{NeedTokens: d.RequiresToken, Budget: &d.Budget}, at)
	d.connsMu.Lock()
	defer d.connsMu.Unlock()
	d.conns = append(d.conns, conns)
	return conns
}

// distrustAll makes strangers of all connections, and closes none. The node
// does not keep which token each has shown. Those whose token is still valid
// are trusted again with their next request.
func (d *Doors) distrustAll() {
	d.connsMu.Lock()
	defer d.connsMu.Unlock()
	for _, conns := range d.conns {
		conns.distrust()
	}
}

// DataConnections returns an empty set of connections for a door whose callers
// ask for decisions over connections of their own. All such doors share their
// seats.
func (d *Doors) DataConnections() *Connections {
	d.seatsOnce.Do(func() { d.dataSeats = newSeatPool(d.dataConnectionLimit(MaxFiles())) })
	return d.newConnections(d.dataSeats)
}

// dataConnectionLimit returns how many connections these doors serve at once in
// a process that may open this many files.
func (d *Doors) dataConnectionLimit(files int) int {
	// Half of the files stay free: connections whose answers are held back have no
	// seat, but need files.
	if d.MaxConnections == 0 && d.Connections > 0 {
		return min(d.Connections, files/2)
	}
	return d.Seats(min(MaxDataConnections, files/2), seatParts, seatMemory)
}
