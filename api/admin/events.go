package admin

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/ring"
)

const (
	// defaultEvents and maxEvents are how many events an answer has.
	defaultEvents, maxEvents = 100, 1000
	// sameEventMS is how far apart nodes may log one event, in milliseconds.
	sameEventMS = 10_000
)

// eventsReport is what the nodes logged in the last day.
type eventsReport struct {
	Node   string        `json:"node"` // the node that was asked
	Nodes  []nodePart    `json:"nodes"`
	Events []eventReport `json:"events"` // the latest first
}

// eventReport is a line of the log of one node or several.
type eventReport struct {
	AtMS   int64             `json:"at_ms"` // when it was logged last
	Level  string            `json:"level"` // info, warn or error
	Text   string            `json:"text"`
	Fields map[string]string `json:"fields"`
	Nodes  []string          `json:"nodes"` // the nodes that logged it
	Count  int64             `json:"count"` // how often it was logged by the node that logged it most
}

// getEvents answers with what the nodes logged in the last day.
func (s *Server) getEvents(w http.ResponseWriter, r *http.Request) error {
	n, err := countParam(r.URL.Query(), defaultEvents, maxEvents)
	if err != nil {
		return err
	}

	logs := s.config.Events()
	var ids []ring.NodeID
	for _, log := range logs {
		ids = append(ids, log.Node)
	}
	report := eventsReport{Node: s.doors.Node, Nodes: s.nodeParts(ids)}
	report.Events = mergeEvents(logs, report.Nodes)
	report.Events = report.Events[:min(n, len(report.Events))]
	return s.reply(w, report)
}

// mergeEvents puts the nodes' events in order, the latest first, and joins what
// several nodes logged at about the same time. parts has the nodes' names, in
// the order of logs.
func mergeEvents(logs []*history.NodeEvents, parts []nodePart) []eventReport {
	type line struct {
		*history.Event
		node string
	}

	var lines []line
	for i, log := range logs {
		for j := range log.Events {
			lines = append(lines, line{&log.Events[j], cmp.Or(parts[i].Name, parts[i].ID)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(b.At, a.At) })

	list := []eventReport{}
	latest := map[string]int{} // the index of the latest event of a text and its fields
	for _, l := range lines {
		key := keyOf(l.Event)
		at, known := latest[key]
		if known && list[at].AtMS-l.At <= sameEventMS && !slices.Contains(list[at].Nodes, l.node) {
			list[at].Nodes = append(list[at].Nodes, l.node)
			list[at].Count = max(list[at].Count, l.Count)
			continue
		}

		latest[key] = len(list)
		list = append(list, newEventReport(l.Event, l.node))
	}

	for i := range list {
		slices.Sort(list[i].Nodes)
	}

	return list
}

func newEventReport(e *history.Event, node string) eventReport {
	fields := map[string]string{}
	for _, f := range e.Fields {
		fields[f.Name] = f.Value
	}
	return eventReport{e.At, strings.ToLower(e.Level.String()), e.Text, fields, []string{node}, e.Count}
}

// keyOf is the same for events that say the same.
func keyOf(e *history.Event) string {
	var key strings.Builder
	key.WriteString(e.Level.String() + "\x00" + e.Text)
	for _, f := range e.Fields {
		key.WriteString("\x00" + f.Name + "\x00" + f.Value)
	}
	return key.String()
}
