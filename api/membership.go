package api

import (
	"fmt"
	"net/http"
)

// leave takes this node out of the cluster. Checks on open connections are decided meanwhile, by asking others.
func (s *adminServer) leave(w http.ResponseWriter, r *http.Request) error {
	if s.api.config.Membership == nil {
		return errorf(NotFound, "this node is in no cluster that it could leave")
	}
	if err := s.api.config.Membership.Leave(r.Context()); err != nil {
		return fmt.Errorf("leave cluster: %w", err)
	}
	s.log.Info("left the cluster", "by", writer(r))
	s.sendJSON(w, append(appendString([]byte(`{"left":`), s.api.config.Node), '}'))
	return nil
}

// removeMember takes a node that is gone for good out of the cluster.
func (s *adminServer) removeMember(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if s.api.config.Membership == nil {
		return errorf(NotFound, "this node is in no cluster")
	}
	if len(name) > maxValue {
		return errorf(BadValue, "name must not have more than %d bytes", maxValue)
	}
	if err := s.api.config.Membership.Remove(r.Context(), name); err != nil {
		return fmt.Errorf("remove %q: %w", excerpt(name), err)
	}
	s.log.Info("removed a member", "name", name, "by", writer(r))
	s.sendJSON(w, append(appendString([]byte(`{"removed":`), name), '}'))
	return nil
}
