// Package raftio is what Raft reads and writes through on a node: [Transport]
// carries its messages over the peer port, [LogStore] watches the store of its
// log, and [NewLogger] lowers the levels of its log lines. It knows neither the
// cluster's members nor what entries mean.
package raftio
