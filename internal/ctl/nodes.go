package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// NodeInvitation is what a new machine joins with.
type NodeInvitation struct {
	// Command is the line to type on the machine; the code in it is a secret.
	Command string    `json:"command"`
	Code    string    `json:"code"`
	Expires time.Time `json:"expires"`
	// Addresses are those of this head that the code names.
	Addresses []string `json:"addresses"`
	// Note says what whoever adds a machine should know, "" for nothing.
	Note string `json:"note,omitempty"`
}

// RemovedNode is what a removal did.
type RemovedNode struct {
	Name string `json:"name"`
	// Cleans says that the machine was reached, and takes gpulab off itself.
	Cleans bool `json:"cleans"`
	// Notebooks are those that ran there, as HANDLE/NAME.
	Notebooks []string `json:"notebooks,omitempty"`
}

// RenamedNode is what a machine is shown as, and was before.
type RenamedNode struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	Before string `json:"before"`
}

// NodeLimit says whom a machine is for: "role:guest", "group:vision". None is
// nobody.
type NodeLimit struct {
	For []string `json:"for"`
}

// Words says it for people: "guests and the group vision".
func (l *NodeLimit) Words() string {
	if l == nil {
		return "everybody"
	}
	var words []string
	for _, who := range l.For {
		if role, is := strings.CutPrefix(who, "role:"); is {
			words = append(words, role+"s")
		} else {
			words = append(words, "the group "+strings.TrimPrefix(who, "group:"))
		}
	}
	switch len(words) {
	case 0:
		return "nobody"
	case 1:
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// Pool is what the socket offers about the machines of the pool.
type Pool interface {
	// InviteNode makes a code for one machine.
	InviteNode(ctx context.Context) (NodeInvitation, error)
	// Nodes are the machines, the head first.
	Nodes(ctx context.Context) (Machines, error)
	// RemoveNode takes a machine out of the pool. While notebooks run there it
	// does so only if anyway is set.
	RemoveNode(ctx context.Context, name string, anyway bool) (RemovedNode, error)
	// NodeRequests are the machines that ask to be let in without a code.
	NodeRequests(ctx context.Context) ([]NodeRequest, error)
	// AnswerNode lets the machine with a number in, or does not.
	AnswerNode(ctx context.Context, number string, accept bool) (NodeRequest, error)
	// WithdrawInvitation makes a code worthless that nobody has used.
	WithdrawInvitation(ctx context.Context, id string) error
	// CordonNode lets a machine take no new work, UncordonNode lets it again.
	CordonNode(ctx context.Context, name, reason string) (Cordon, error)
	UncordonNode(ctx context.Context, name string) error
	// DrainNode does as CordonNode, and ends what is there after some time. KeepNode
	// takes the end back.
	DrainNode(ctx context.Context, name string, d Drain) (Cordon, error)
	KeepNode(ctx context.Context, name string) error
	// RenameNode shows a machine under a title; its own name takes that back.
	RenameNode(ctx context.Context, name, title string) (RenamedNode, error)
	// PlaceNotebooks changes how machines are chosen, and returns how they are.
	PlaceNotebooks(ctx context.Context, wanted Placing) (Placing, error)
	// LimitNode says whom a machine is for; nil is everybody.
	LimitNode(ctx context.Context, name string, limit *NodeLimit) error
}

// NodeRequest is a machine that asks to be let in. Name and version are what it
// says itself: only the number, if it is on that machine's screen, too, makes it
// known.
type NodeRequest struct {
	Number  string    `json:"number"`
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Version string    `json:"version"`
	Asked   time.Time `json:"asked"`
	Expires time.Time `json:"expires"`
}

// Target is how the audit log calls the machine.
func (r NodeRequest) Target() string { return r.Name + " at " + r.Address }

type answerNode struct {
	Number string `json:"number"`
	Accept bool   `json:"accept"`
}

// Drain says how a machine is emptied.
type Drain struct {
	Reason string        `json:"reason,omitempty"`
	In     time.Duration `json:"in"` // until notebooks end that are still there; 0 is now
}

// Machines are all of the pool.
type Machines struct {
	Nodes []Node `json:"nodes"`
	// Note says where notebooks run, where that is not everywhere.
	Note string `json:"note,omitempty"`
	// Invitations are the codes with which a machine can still join, the newest first.
	Invitations []OpenInvitation `json:"invitations,omitempty"`
	// Requests are machines without a code that ask to be let in, who has waited
	// longest first.
	Requests []NodeRequest `json:"requests,omitempty"`
	Placing  Placing       `json:"placing,omitzero"`
}

// Placing is how machines are chosen for notebooks. In a change, what is left out
// stays.
type Placing struct {
	CPU  string `json:"cpu,omitempty"`  // one of the PlaceCPU constants
	GPUs string `json:"gpus,omitempty"` // one of the PlaceGPUs constants
}

// Detail is the rules for the audit log.
func (p Placing) Detail() string { return "CPU notebooks: " + p.CPU + ", GPUs: " + p.GPUs }

// Where notebooks run, of the machines that have room for them.
const (
	PlaceCPUAny     = "any"
	PlaceCPUPrefer  = "prefer"  // on machines without GPUs where one has room
	PlaceCPURequire = "require" // on machines without GPUs, or not at all
	PlaceGPUsPack   = "pack"    // where the fewest GPUs are free
	PlaceGPUsSpread = "spread"  // where the most GPUs are free
)

// OpenInvitation is a code that nobody has used yet.
type OpenInvitation struct {
	ID      string    `json:"id"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
}

// What an error about machines is about; the text around it is for people.
var (
	ErrNodeUnknown  = errors.New("no such machine")
	ErrNodeRefused  = errors.New("not possible with this machine now")
	ErrNoInvitation = errors.New("no such invitation")
	ErrNoRequest    = errors.New("no such request")
	ErrNodeReason   = errors.New("reason not allowed")
	ErrNodeLimit    = errors.New("nobody a machine can be for")
	ErrPlacing      = errors.New("no such rule")
	ErrNodeTitle    = errors.New("title not allowed")
)

type removeNode struct {
	Anyway bool `json:"anyway"`
}

type limitNode struct {
	Limit *NodeLimit `json:"limit"`
}

type renameNode struct {
	Title string `json:"title"`
}

type cordonNode struct {
	Reason string `json:"reason"`
}

func handleNodes(mux *http.ServeMux, d Pool) {
	mux.HandleFunc("POST /v1/nodes/{name}/cordon",
		answer(withBody(smallBody, func(r *http.Request, in cordonNode) (any, error) {
			return d.CordonNode(r.Context(), r.PathValue("name"), in.Reason)
		})))
	mux.HandleFunc("POST /v1/nodes/{name}/uncordon", answer(func(r *http.Request) (any, error) {
		return struct{}{}, d.UncordonNode(r.Context(), r.PathValue("name"))
	}))
	mux.HandleFunc("POST /v1/nodes/{name}/drain", answer(withBody(smallBody, func(r *http.Request, in Drain) (any, error) {
		return d.DrainNode(r.Context(), r.PathValue("name"), in)
	})))
	mux.HandleFunc("POST /v1/nodes/{name}/keep", answer(func(r *http.Request) (any, error) {
		return struct{}{}, d.KeepNode(r.Context(), r.PathValue("name"))
	}))
	mux.HandleFunc("POST /v1/nodes/{name}/rename",
		answer(withBody(smallBody, func(r *http.Request, in renameNode) (any, error) {
			return d.RenameNode(r.Context(), r.PathValue("name"), in.Title)
		})))
	mux.HandleFunc("POST /v1/nodes/{name}/limit",
		answer(withBody(smallBody, func(r *http.Request, in limitNode) (any, error) {
			return struct{}{}, d.LimitNode(r.Context(), r.PathValue("name"), in.Limit)
		})))
	mux.HandleFunc("POST /v1/placing", answer(withBody(smallBody, func(r *http.Request, in Placing) (any, error) {
		return d.PlaceNotebooks(r.Context(), in)
	})))
	mux.HandleFunc("POST /v1/nodes/invite", answer(func(r *http.Request) (any, error) {
		return d.InviteNode(r.Context())
	}))
	mux.HandleFunc("GET /v1/nodes/requests", answer(func(r *http.Request) (any, error) {
		return d.NodeRequests(r.Context())
	}))
	mux.HandleFunc("POST /v1/nodes/requests",
		answer(withBody(smallBody, func(r *http.Request, in answerNode) (any, error) {
			return d.AnswerNode(r.Context(), in.Number, in.Accept)
		})))
	mux.HandleFunc("DELETE /v1/nodes/invitations/{id}", answer(func(r *http.Request) (any, error) {
		return struct{}{}, d.WithdrawInvitation(r.Context(), r.PathValue("id"))
	}))
	mux.HandleFunc("GET /v1/nodes", answer(func(r *http.Request) (any, error) { return d.Nodes(r.Context()) }))
	mux.HandleFunc("POST /v1/nodes/{name}/remove",
		answer(withBody(smallBody, func(r *http.Request, in removeNode) (any, error) {
			return d.RemoveNode(r.Context(), r.PathValue("name"), in.Anyway)
		})))
}

// InviteNode implements Daemon.
func (c *Client) InviteNode(ctx context.Context) (NodeInvitation, error) {
	return call[NodeInvitation](ctx, c, "POST", "/v1/nodes/invite", nil)
}

// Nodes implements Daemon.
func (c *Client) Nodes(ctx context.Context) (Machines, error) {
	return call[Machines](ctx, c, "GET", "/v1/nodes", nil)
}

// NodeRequests implements Daemon.
func (c *Client) NodeRequests(ctx context.Context) ([]NodeRequest, error) {
	return call[[]NodeRequest](ctx, c, "GET", "/v1/nodes/requests", nil)
}

// AnswerNode implements Daemon.
func (c *Client) AnswerNode(ctx context.Context, number string, accept bool) (NodeRequest, error) {
	return call[NodeRequest](ctx, c, "POST", "/v1/nodes/requests", answerNode{number, accept})
}

// RemoveNode implements Daemon.
func (c *Client) RemoveNode(ctx context.Context, name string, anyway bool) (RemovedNode, error) {
	return call[RemovedNode](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/remove", removeNode{anyway})
}

// WithdrawInvitation implements Daemon.
func (c *Client) WithdrawInvitation(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, "DELETE", "/v1/nodes/invitations/"+url.PathEscape(id), nil)
	return err
}

// CordonNode implements Daemon.
func (c *Client) CordonNode(ctx context.Context, name, reason string) (Cordon, error) {
	return call[Cordon](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/cordon", cordonNode{reason})
}

// UncordonNode implements Daemon.
func (c *Client) UncordonNode(ctx context.Context, name string) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/uncordon", nil)
	return err
}

// DrainNode implements Daemon.
func (c *Client) DrainNode(ctx context.Context, name string, d Drain) (Cordon, error) {
	return call[Cordon](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/drain", d)
}

// KeepNode implements Daemon.
func (c *Client) KeepNode(ctx context.Context, name string) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/keep", nil)
	return err
}

// RenameNode implements Daemon.
func (c *Client) RenameNode(ctx context.Context, name, title string) (RenamedNode, error) {
	return call[RenamedNode](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/rename", renameNode{title})
}

// PlaceNotebooks implements Daemon.
func (c *Client) PlaceNotebooks(ctx context.Context, wanted Placing) (Placing, error) {
	return call[Placing](ctx, c, "POST", "/v1/placing", wanted)
}

// LimitNode implements Daemon.
func (c *Client) LimitNode(ctx context.Context, name string, limit *NodeLimit) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/nodes/"+url.PathEscape(name)+"/limit", limitNode{limit})
	return err
}

// Machine is what the socket of a joined machine offers; all else is the head's.
type Machine interface {
	Status(ctx context.Context) (Status, error)
	WatchBoot(ctx context.Context, fn func(Boot) error) error
	// Elsewhere is a sentence for whoever asks for anything else.
	Elsewhere() string
}

// ServeMachine answers on the socket of a joined machine as Serve does on a
// head's.
func ServeMachine(ctx context.Context, socket string, m Machine) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", answer(func(r *http.Request) (any, error) { return m.Status(r.Context()) }))
	mux.HandleFunc("GET /v1/boot", watchBoot(m))
	mux.HandleFunc("/", answer(func(*http.Request) (any, error) { return nil, errors.New(m.Elsewhere()) }))
	return serveOn(ctx, socket, mux)
}

// watchBoot sends the stages of a start as they go.
func watchBoot(d interface {
	WatchBoot(ctx context.Context, fn func(Boot) error) error
}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		enc, flush := json.NewEncoder(w), http.NewResponseController(w)
		err := d.WatchBoot(r.Context(), func(b Boot) error {
			if err := enc.Encode(b); err != nil {
				return err
			}
			return flush.Flush()
		})
		if err != nil && r.Context().Err() == nil {
			slog.Warn("watching the start ended", "err", err)
		}
	}
}
