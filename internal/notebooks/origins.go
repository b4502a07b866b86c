package notebooks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// ErrNoOrigin says that no port is left for a person's notebooks.
var ErrNoOrigin = errors.New("no port is left for notebooks")

// Origins assigns each person the port of the head that serves their notebooks.
// Browsers tell origins apart by port, so one person's pages cannot act as
// another's. A port stays its person's forever, even after the account is gone:
// what a page has stored in a browser outlives the account.
type Origins struct {
	db          *sql.DB
	first, last int
	free        func(port int) bool
	now         func() time.Time

	mu     sync.RWMutex
	owner  map[int]int64 // by port, also of ports outside of the range
	port   map[int64]int // by person, within the range
	opener func(port int)

	labels *Labels
}

// NewOrigins reads who has which port. ports is the range to assign from, in
// order; free reports whether no other program listens on a port.
func NewOrigins(ctx context.Context, db *sql.DB, ports []int, free func(port int) bool) (*Origins, error) {
	o := &Origins{
		db: db, first: ports[0], last: ports[len(ports)-1], free: free, now: time.Now, owner: map[int]int64{},
		port: map[int64]int{},
	}
	rows, err := db.QueryContext(ctx, `SELECT port, user_id FROM notebook_ports ORDER BY assigned_at, port`)
	if err != nil {
		return nil, fmt.Errorf("read the notebook ports: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var port int
		var user int64
		if err := rows.Scan(&port, &user); err != nil {
			return nil, fmt.Errorf("read the notebook ports: %w", err)
		}
		o.note(port, user)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the notebook ports: %w", err)
	}
	return o, nil
}

// UseLabels gives people's notebooks DNS names, too. It is called before o is used.
func (o *Origins) UseLabels(labels *Labels) { o.labels = labels }

func (o *Origins) note(port int, user int64) {
	o.owner[port] = user
	if port >= o.first && port <= o.last {
		o.port[user] = port
	}
}

// Port returns the port of a person's notebooks, which it assigns at the first
// call. The error is [ErrNoOrigin], as a sentence for people, when the range is
// used up.
func (o *Origins) Port(ctx context.Context, user int64) (int, error) {
	o.mu.RLock()
	port, ok := o.port[user]
	o.mu.RUnlock()
	if ok {
		return port, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if port, ok := o.port[user]; ok {
		return port, nil
	}
	if port = o.pick(user); port == 0 {
		return 0, &users.Error{Kind: ErrNoOrigin, Text: fmt.Sprintf("No address is left for your notebooks: all ports "+
			"from %d to %d "+
			"belong to people, or are used by other programs. Ask an admin to extend notebookPorts in the lab’s configuration.",
			o.first, o.last)}
	}
	if _, err := o.db.ExecContext(ctx, `INSERT INTO notebook_ports (port, user_id, assigned_at) VALUES (?, ?, ?)`,
		port, user, o.now().UnixMilli()); err != nil {
		return 0, fmt.Errorf("assign a notebook port: %w", err)
	}
	o.note(port, user)
	if o.opener != nil {
		o.opener(port)
	}
	return port, nil
}

// Authority returns the host, with its port unless that is 443, at which a person's
// notebooks are for those who use gpulab's pages under host: a label where the lab has
// the wildcard name of host, otherwise host at the person's port. Errors are those of Port.
func (o *Origins) Authority(ctx context.Context, host string, user int64) (string, error) {
	port, err := o.Port(ctx, user)
	if err != nil {
		return "", err
	}
	return o.labels.authority(host, port), nil
}

// OwnerAt returns whose notebooks are at an authority, written as [Origins.Authority]
// writes it, and the host of gpulab's pages there. Whether that is the lab's, the caller
// has to check.
func (o *Origins) OwnerAt(authority string) (user int64, host string, ok bool) {
	host, digits, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	if port, base, ok := o.labels.parse(host); ok {
		user, ok = o.Owner(port)
		return user, base, ok && o.labels.authority(base, port) == authority
	}
	port, err := strconv.Atoi(digits)
	if err != nil || host != strings.ToLower(host) || net.JoinHostPort(host, strconv.Itoa(port)) != authority {
		return 0, "", false
	}
	user, ok = o.Owner(port)
	return user, host, ok
}

// pick prefers the port that follows from the person's number, which is never
// given twice: a lab whose database is taken back to an earlier state assigns
// the same ports again.
func (o *Origins) pick(user int64) int {
	usable := func(port int) bool {
		_, taken := o.owner[port]
		return !taken && o.free(port)
	}
	if size := int64(o.last - o.first + 1); user >= 1 && user <= size {
		if port := o.first + int(user) - 1; usable(port) {
			return port
		}
	}
	// From the end, where the preferred ports of the people to come are last.
	for port := o.last; port >= o.first; port-- {
		if usable(port) {
			return port
		}
	}
	return 0
}

// Owner returns whose notebooks a port serves.
func (o *Origins) Owner(port int) (user int64, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	user, ok = o.owner[port]
	return user, ok && o.port[user] == port
}

// Ports returns the ports that belong to people, in order.
func (o *Origins) Ports() []int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.Sorted(maps.Values(o.port))
}

// OnAssigned registers the function that opens a port which has just been
// assigned. One call runs at a time, and Port returns after it.
func (o *Origins) OnAssigned(open func(port int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opener = open
}
