package mail

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Kind is what a mail is about.
type Kind string

// The kinds that people choose.
const (
	Requests Kind = "requests" // somebody asks for an account
	Turn     Kind = "turn"     // a notebook that waited has started
	Jobs     Kind = "jobs"     // a job has begun or ended
	Stop     Kind = "stop"     // a notebook is about to be stopped
	Quota    Kind = "quota"    // nearly used
	Home     Kind = "home"     // nearly full
	Disk     Kind = "disk"     // of the lab
	Machines Kind = "machines" // one is silent
	GPUs     Kind = "gpus"     // one is faulty
	SignIn   Kind = "sign-in"  // a provider leaves out somebody's groups
)

// The kinds that nobody chooses: somebody asked for exactly this mail.
const (
	Invitation Kind = "invitation"
	Approval   Kind = "approval" // of an account that somebody asked for
	Trial      Kind = "test"
)

// Rule is what a kind is to people.
type Rule struct {
	Kind Kind
	What string // for the page of the account
	// Admins says that it concerns the lab, and only administrators get it.
	Admins bool
	// many is the subject of a mail about several, with their number; page is where all of them are seen.
	many, page string
	// quiet is for how long a condition has to be over before it is told of again.
	quiet time.Duration
	// hourly is how many mails of the kind one person gets in an hour; what is more comes together in the next.
	hourly int
}

var rules = []Rule{
	{Kind: Turn, What: "A notebook that waited for a GPU has started", many: "%d notebooks that waited have started",
		page: "/", quiet: time.Hour, hourly: 6},
	{Kind: Jobs, What: "A job has ended that took five minutes or longer; what its --mail-type asks for comes in any case",
		many: "News of %d jobs", page: "/jobs", quiet: time.Hour, hourly: 6},
	{Kind: Stop, What: "A notebook is about to be stopped: nobody uses its GPU, it gets too old, or a quota is used up",
		many: "%d notebooks are about to be stopped", page: "/", quiet: 10 * time.Minute, hourly: 12},
	{Kind: Quota, What: "GPU hours are nearly used up", many: "%d quotas are nearly used up", page: "/use",
		quiet: 24 * time.Hour, hourly: 2},
	{Kind: Home, What: "Your home is nearly full", many: "Your home is nearly full (%d notices)", page: "/folders",
		quiet: 24 * time.Hour, hourly: 2},
	{Kind: Requests, What: "Somebody asks for an account", Admins: true, many: "%d people ask for an account",
		page: "/requests", quiet: time.Hour, hourly: 4},
	{Kind: Disk, What: "A disk of the lab gets full", Admins: true, many: "%d disks of the lab get full", page: "/status",
		quiet: 6 * time.Hour, hourly: 4},
	{Kind: Machines, What: "A machine is not heard of", Admins: true, many: "%d machines are not heard of",
		page: "/machines", quiet: time.Hour, hourly: 4},
	{Kind: GPUs, What: "A GPU is faulty", Admins: true, many: "%d GPUs are faulty", page: "/gpus", quiet: 24 * time.Hour,
		hourly: 4},
	{Kind: SignIn, What: "An identity provider does not send a person's groups", Admins: true,
		many: "The groups of %d people are missing", page: "/users", quiet: 24 * time.Hour, hourly: 2},
}

func ruleOf(k Kind) (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Kind == k })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// Kinds lists what somebody of that role can choose.
func Kinds(role users.Role) []Rule {
	var list []Rule
	for _, r := range rules {
		if !r.Admins || role == users.RoleAdmin {
			list = append(list, r)
		}
	}
	return list
}

func (r Rule) subject(n int) string { return fmt.Sprintf(r.many, n) }
