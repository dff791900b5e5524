package gossip

import (
	"testing"
)

// Flags for sending a fuzzed message.
const (
	withLabel  = 1 << iota // without it, there is no label
	withKey                // to a node that has a key
	withSecret             // encrypted with that key
	withSum                // a packet with a checksum
)

// fuzzTargets opens one node without a key and one with a key.
func fuzzTargets(f *testing.F) [2]*target {
	return [2]*target{openTarget(f, nil), openTarget(f, secret)}
}

// FuzzPacket sends packets to real nodes, which must still answer afterwards.
func FuzzPacket(f *testing.F) {
	nodes := fuzzTargets(f)
	for _, b := range seeds(f).packets {
		for _, how := range []byte{withLabel, withLabel | withSum,
			withLabel | withKey | withSecret | withSum, withLabel | withKey, 0} {
			f.Add(b, how)
		}
	}
	for _, b := range hostilePackets() {
		if len(b) <= maxPacket {
			f.Add(b, byte(withLabel))
			f.Add(b, byte(withLabel|withKey|withSecret))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, how byte) {
		x := *nodes[how&withKey/withKey]
		x.t = t
		if how&withSum != 0 {
			b = summed(b)
		}
		if how&withSecret != 0 {
			b = seal(secret, cipherVersion, b, []byte(label))
		}
		if how&withLabel != 0 {
			b = labeled(b)
		}
		if len(b) == 0 || len(b) > 60_000 {
			return
		}
		x.packet(b)
		x.awaitAnswer()
	})
}

// FuzzStream sends streams to real nodes, which must still answer afterwards.
func FuzzStream(f *testing.F) {
	nodes := fuzzTargets(f)
	for _, b := range seeds(f).streams {
		f.Add(b, byte(withLabel))
		f.Add(b, byte(withLabel|withKey|withSecret))
		f.Add(b, byte(withLabel|withKey))
	}
	for _, b := range hostileStreams() {
		if len(b) <= maxPacket {
			f.Add(b, byte(withLabel))
			f.Add(b, byte(withLabel|withKey|withSecret))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, how byte) {
		x := *nodes[how&withKey/withKey]
		x.t = t
		if how&withSecret != 0 {
			b = sealStream(secret, cipherVersion, b)
		}
		if how&withLabel != 0 {
			b = labeled(b)
		}
		x.stream(b)
		x.awaitAnswer()
	})
}
