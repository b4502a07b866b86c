package notebooks

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// pastUse is what people have used of GPUs: GPU-seconds, of which those of one
// half-life ago count half.
type pastUse struct {
	at time.Time // for when it was counted
	of map[int64]float64
}

// ranks are those of the roles among people whose past use is the same.
var ranks = map[string]int64{
	string(users.RoleMember): 1,
	string(users.RoleLead):   2,
	string(users.RoleAdmin):  2,
}

const rankSteps = 4 // more than there are ranks

// priority says how a launch comes among those who wait with it: who used less
// first, among equals by their role.
func (s *Service) priority(ctx context.Context, l Launch) int32 {
	at := s.now().Truncate(cmp.Or(s.cfg.Sampling, time.Minute))
	if !at.Equal(s.used.at) {
		of, err := PastUse(ctx, s.rows.db, at, cmp.Or(s.cfg.HalfLife, 7*24*time.Hour))
		if err != nil {
			s.log.Warn("past use of GPUs is not known; the order of the line stays as it was", "error", err)
		} else {
			s.used = pastUse{at, of}
		}
	}
	return Priority(s.roleOf(ctx, l), s.used.of[l.UserID])
}

// Priority is that of somebody in a role who has used so much, in GPU-seconds.
func Priority(role string, used float64) int32 {
	used = math.Min(used, math.MaxInt32/rankSteps-1)
	return int32(ranks[role] - rankSteps*int64(used)) //nolint:gosec // it is within
}

// PastUse adds up what everybody's launches have held until then, in GPU-seconds
// by the number of the person: those of one half-life ago count half.
func PastUse(ctx context.Context, db *sql.DB, until time.Time, halfLife time.Duration) (map[int64]float64, error) {
	// What is twenty half-lives ago counts a millionth.
	list, err := db.QueryContext(ctx, `WITH held AS (
			SELECT user_id, gpus, started_at, ended_at FROM launches WHERE gpus > 0 UNION ALL
			SELECT user_id, gpus, one.value ->> 'from', one.value ->> 'until' FROM launches JOIN jobs ON launch_id = launches.id, json_each(tries) AS one WHERE gpus > 0 AND tries <> '[]')
		SELECT * FROM held WHERE started_at < ? AND (ended_at IS NULL OR ended_at > ?)`,
		until.UnixMilli(), until.Add(-20*halfLife).UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read past use of GPUs: %w", err)
	}
	defer func() { _ = list.Close() }()
	used := map[int64]float64{}
	for list.Next() {
		var user, gpus, started int64
		var ended sql.NullInt64
		if err := list.Scan(&user, &gpus, &started, &ended); err != nil {
			return nil, fmt.Errorf("read past use of GPUs: %w", err)
		}
		end := until
		if ended.Valid && ended.Int64 < until.UnixMilli() {
			end = time.UnixMilli(ended.Int64)
		}
		used[user] += float64(gpus) * decayed(until.Sub(time.UnixMilli(started)), until.Sub(end), halfLife)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("read past use of GPUs: %w", err)
	}
	return used, nil
}

// decayed is how many seconds count of those from so long ago until so long ago.
func decayed(from, to, halfLife time.Duration) float64 {
	half := func(ago time.Duration) float64 { return math.Exp2(-float64(ago) / float64(halfLife)) }
	return (half(to) - half(from)) * halfLife.Seconds() / math.Ln2
}
