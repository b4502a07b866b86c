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

const (
	rankSteps = 4       // more than there are ranks
	bandWidth = 1 << 30 // of a priority's range: there are four bands, from -1 to 2
)

// offeredCounts is how much of its use counts of a job that may give way: who
// takes what nobody else wants goes less far back in the line for it.
const offeredCounts = 0.5

// priority says how a launch comes among those who wait with it: those of a higher
// band, then those that go first for their group, then who used less, among equals
// by their role.
func (s *Service) priority(ctx context.Context, l Launch, first bool) int32 {
	at := s.now().Truncate(cmp.Or(s.cfg.Sampling, time.Minute))
	if !at.Equal(s.used.at) {
		of, err := PastUse(ctx, s.rows.db, at, cmp.Or(s.cfg.HalfLife, 7*24*time.Hour))
		if err != nil {
			s.log.Warn("past use of GPUs is not known; the order of the line stays as it was", "error", err)
		} else {
			s.used = pastUse{at, of}
		}
	}
	return inBand(s.band(ctx, l), first, s.roleOf(ctx, l), s.used.of[l.UserID])
}

// Priority is that of somebody in a role who has used so much, in GPU-seconds, where no
// launch gives way to another.
func Priority(role string, used float64) int32 { return inBand(0, false, role, used) }

// inBand is a place in a band, whose upper half is of those who go first.
func inBand(band int64, first bool, role string, used float64) int32 {
	top := band * bandWidth
	if !first {
		top -= bandWidth / 2
	}
	used = math.Min(used, bandWidth/2/rankSteps-2)
	return int32(top - rankSteps + ranks[role] - rankSteps*int64(used)) //nolint:gosec // it is within
}

// PastUse adds up what everybody's launches have held until then, in GPU-seconds
// by the number of the person: those of one half-life ago count half.
func PastUse(ctx context.Context, db *sql.DB, until time.Time, halfLife time.Duration) (map[int64]float64, error) {
	// What is twenty half-lives ago counts a millionth.
	list, err := db.QueryContext(ctx, `WITH held AS (
			SELECT user_id, gpus, coalesce(preemptible, 0), started_at, ended_at FROM launches LEFT JOIN jobs ON launch_id = id
			WHERE gpus > 0 UNION ALL
			SELECT user_id, gpus, preemptible, one.value ->> 'from', one.value ->> 'until' FROM launches JOIN jobs
			ON launch_id = launches.id, json_each(tries) AS one WHERE gpus > 0 AND tries <> '[]')
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
		var offered bool
		if err := list.Scan(&user, &gpus, &offered, &started, &ended); err != nil {
			return nil, fmt.Errorf("read past use of GPUs: %w", err)
		}
		end := until
		if ended.Valid && ended.Int64 < until.UnixMilli() {
			end = time.UnixMilli(ended.Int64)
		}
		share := float64(gpus)
		if offered {
			share *= offeredCounts
		}
		used[user] += share * decayed(until.Sub(time.UnixMilli(started)), until.Sub(end), halfLife)
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
