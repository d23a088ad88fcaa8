package flow

import (
	"time"

	"longhaul/internal/words/units"
)

// Service is a service of the DNS whose SRV records are the hops of a tunnel.
type Service struct {
	Name     string        `json:"name"`
	State    ServiceState  `json:"state"`              // of the latest answer
	Since    time.Time     `json:"since,omitzero"`     // of State
	Error    string        `json:"error,omitempty"`    // why it has no targets
	Answered time.Time     `json:"answered,omitzero"`  // the last answer with targets, which is in force
	TTL      units.Seconds `json:"ttl_seconds"`        // of that answer, as it is kept
	Found    int           `json:"targets"`            // of that answer
	LeftOut  []string      `json:"left_out,omitempty"` // the first of those beyond the hops that a tunnel may have
}

// ServiceState is what the latest answer about a service was.
type ServiceState string

// The states of a service. In all but the first two, the last answer with targets stays in force for a day.
const (
	ServiceAsking    ServiceState = "asking"     // no query has ended
	ServiceAnswered  ServiceState = "answered"   // with targets
	ServiceNoName    ServiceState = "no-name"    // the name does not exist
	ServiceNoRecords ServiceState = "no-records" // the name has no SRV records
	ServiceNoTarget  ServiceState = "no-target"  // they lead nowhere
	ServiceNoAnswer  ServiceState = "no-answer"  // none that could be used, in time
)

// ServiceStates are all states.
var ServiceStates = []ServiceState{ServiceAsking, ServiceAnswered, ServiceNoName, ServiceNoRecords, ServiceNoTarget, ServiceNoAnswer}

// Remedy is what to do about a service without targets.
func (s *Service) Remedy() string {
	if s.State == ServiceNoAnswer {
		return "see whether the name servers in /etc/resolv.conf of this host answer"
	}
	return "add SRV records of the name, or check it"
}
