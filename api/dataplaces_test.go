package api

import (
	"net"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/metrics"
)

// ends is a listener that accepts the connections it is given.
type ends struct {
	net.Listener
	list []net.Conn
}

func (e *ends) Accept() (net.Conn, error) {
	c := e.list[0]
	e.list = e.list[1:]
	return c, nil
}

// Two doors of the data plane have their seats together, and each counts its own connections.
func TestDataConnections_ShareTheirPlaces(t *testing.T) {
	t.Parallel()
	d := &Doors{Config: Config{MaxConnections: 64}}
	one, other := d.DataConnections(), d.DataConnections()
	accept := func(c *Connections) *Connection {
		conn, err := c.Listen(&ends{list: []net.Conn{&fakeConn{address: "10.0.0.1"}}}).Accept()
		expect.NoError(t, err)
		return Unwrap[*Connection](conn)
	}
	var first *Connection
	for i := range 63 {
		c := accept([]*Connections{one, other}[i%2])
		c.BeginAnswer() // it is busy, so that it is not displaced
		if i == 0 {
			first = c
		}
	}
	if c := accept(other); !c.ProbesOnly {
		t.Error("one more than there are seats has one")
	} else {
		_ = c.Close()
	}
	_ = first.Close()
	if c := accept(other); c.ProbesOnly {
		t.Error("a seat that the one door has left is not free for the other")
	}

	got := map[string]float64{}
	for name, c := range map[string]*Connections{"one": one, "other": other} {
		c.Metrics(func(m metrics.Metric) { got[name+" "+m.Name] = m.Value }, name)
	}
	for name, want := range map[string]float64{
		"one connections": 31, "other connections": 32, "one connections_max": 63, "other connections_max": 63,
		"one connections_beyond_total": 0, "other connections_beyond_total": 1,
	} {
		expect.Equal(t, got[name], want, "%s", name)
	}
}
