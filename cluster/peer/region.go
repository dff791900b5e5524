package peer

import (
	"errors"
	"fmt"
)

var (
	errFarDisabled = errors.New("this node accepts no connections from other regions now")
	errTooManyFar  = errors.New("there are too many connections from other regions")
	errNoRegion    = errors.New("it does not name its region")
)

// checkRemote returns an error if a connection of kind k to the remote is not
// allowed. Near connections, including Raft's, stay within a region, and far
// ones connect two regions, so neither kind can be used as the other.
func (p *Peers) checkRemote(k connKind, remote Identity) error {
	self := p.config.Self()
	if k != kindFar {
		if self.Region != remote.Region && self.Region != "" && remote.Region != "" {
			return fmt.Errorf("it is in region %q, but this node is in %q", remote.Region, self.Region)
		}
		return p.config.Accept(remote)
	}

	switch {
	case p.config.AcceptFar == nil || self.Region == "":
		return errFarDisabled
	case remote.Region == "":
		return errNoRegion
	case remote.Region != self.Region:
		return p.config.AcceptFar(remote)
	case remote.Cluster != self.Cluster && remote.Cluster != [16]byte{} && self.Cluster != [16]byte{}:
		return fmt.Errorf("two clusters are called region %q, its and this node's: one of them needs another --region", self.Region)
	}
	return fmt.Errorf("it is in this region, %q, and connects as if it were in another", self.Region)
}
