package notebooks

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// rows is the table launches. Every change of state is conditional on the state
// it was decided from, so that a stop that arrives in between is never undone.
type rows struct {
	db *sql.DB
	// doors are the ports of the head that services can have, of which doorFree
	// tells whether nobody else listens there.
	doors    []int
	doorFree func(port int) bool
}

const launchColumns = `id, user_id, handle, name, title, profile, gpus, state, reason, end_code,
	requested_at, started_at, ready_at, ended_at, node, pod, gpu_uuids, simulated, placement,
	output, time_limit, exit_code, environment, after, held, retries, tries, not_before,
	array_tasks, array_gpus, array_job, array_task, preemptible, way_launch, way_for, notes, errors, mail,
	port, door, share, services.group_id, (SELECT g.name FROM groups g WHERE g.id = services.group_id), restarts, stop_at`

// insert adds a waiting launch under the first free name after stem, unless the
// user has limit active launches of its kind already. A job runs the program.
func (t rows) insert(ctx context.Context, l Launch, stem string, limit int, p Program) (Launch, error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return Launch{}, fmt.Errorf("record the launch: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	taken, err := activeNames(ctx, tx, l.UserID)
	if err != nil {
		return Launch{}, fmt.Errorf("record the launch: %w", err)
	}
	same := 0
	for _, kind := range taken {
		if kind == kindOf(l) {
			same++
		}
	}
	switch {
	case same < limit, l.State == Ended:
	case l.Job != nil && l.Job.ArrayJob != 0:
		return Launch{}, errReleased
	case l.Service != nil:
		return Launch{}, ErrTooManyServices
	case l.Job != nil:
		return Launch{}, ErrTooManyJobs
	default:
		return Launch{}, ErrTooMany
	}
	l.Name = freeName(stem, func(s string) bool { _, is := taken[s]; return is })
	l.State = cmp.Or(l.State, Waiting)
	gpus := l.GPUs
	if l.IsArray() {
		gpus = 0 // its elements have them
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO launches
		(user_id, handle, name, title, profile, gpus, state, reason, end_code, requested_at, ended_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		l.UserID, l.Handle, l.Name, l.Title, l.Profile, gpus, l.State, l.Reason, l.EndCode, l.Requested.UnixMilli(),
		nullMilli(l.Ended))
	if err == nil {
		l.ID, err = res.LastInsertId()
	}
	if err == nil && l.Job != nil {
		err = insertJob(ctx, tx, &l, p)
	}
	if err == nil && l.Service != nil {
		err = t.insertService(ctx, tx, &l)
	}
	if err == nil {
		err = tx.Commit()
	}
	if no := (*JobError)(nil); errors.As(err, &no) {
		return Launch{}, no
	}
	if err != nil {
		return Launch{}, fmt.Errorf("record the launch: %w", err)
	}
	l.URL = l.url()
	return l, nil
}

// insertJob adds what makes the launch a job, whose number is known by now.
func insertJob(ctx context.Context, tx *sql.Tx, l *Launch, p Program) error {
	var element *Job
	var array, task sql.NullInt64
	gpus := 0
	outputAs, errorsAs := l.Job.Output, l.Job.Errors
	switch {
	case l.IsArray():
		gpus = l.GPUs
	case l.Job.ArrayJob != 0:
		element = l.Job
		array, task = sql.NullInt64{Int64: l.Job.ArrayJob, Valid: true},
			sql.NullInt64{Int64: int64(l.Job.ArrayTask), Valid: true}
		var state State
		if err := tx.QueryRowContext(ctx, `SELECT state FROM launches WHERE id = ?`,
			l.Job.ArrayJob).Scan(&state); err != nil || state == Ended {
			return cmp.Or(err, errMoved) // it was cancelled meanwhile
		}
	}
	if l.Service != nil && l.Job.Output == "" {
		l.Job.Output = "services/" + l.Name + "-%j.log"
	}
	if !l.IsArray() { // an array's is for each of its elements
		output, err := outputFile(l.Job.Output, l.Handle, l.Title, l.ID, element)
		if err != nil {
			return err
		}
		l.Job.Output = output
		if l.Job.Errors != "" {
			if l.Job.Errors, err = outputFile(l.Job.Errors, l.Handle, l.Title, l.ID, element); err != nil {
				return err
			}
		}
		if l.Job.Errors == l.Job.Output {
			l.Job.Errors = ""
		}
	}
	args, err := json.Marshal(append([]string{}, p.Args...))
	if err != nil {
		return err
	}
	env, err := json.Marshal(p.Env)
	if p.Env == nil {
		env = []byte("{}")
	}
	if err != nil {
		return err
	}
	after, err := json.Marshal(append([]Dependency{}, l.Job.After...))
	if err != nil {
		return err
	}
	notes, err := json.Marshal(append([]string{}, l.Job.Notes...))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO jobs (launch_id, script, args, dir, output, time_limit, environment, after,
		held, retries,
		array_tasks, array_gpus, array_job, array_task, preemptible, env, notes, errors, mail, reader, output_as, errors_as)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		l.ID, p.Script, string(args), p.Dir, l.Job.Output, int64(l.Job.Limit/time.Second), l.Job.Environment, string(after),
		l.Job.Held, l.Job.Retries, l.Job.Array, gpus, array, task, l.Job.Preemptible, string(env),
		string(notes), l.Job.Errors, strings.Join(l.Job.Mail, ","), p.Reader, outputAs, errorsAs)
	return err
}

// filesAs returns the names of a job's files as they were asked for, with their patterns. Of jobs from before it makes
// patterns of the names: the job's own number, or its array's, becomes %j or %A.
func (t rows) filesAs(ctx context.Context, l Launch) (output, errs string, err error) {
	var outputAs, errorsAs sql.NullString
	err = t.db.QueryRowContext(ctx, `SELECT output_as, errors_as FROM jobs WHERE launch_id = ?`, l.ID).Scan(&outputAs,
		&errorsAs)
	if err != nil {
		return "", "", fmt.Errorf("read the files of job %d: %w", l.ID, err)
	}
	switch {
	case outputAs.Valid:
		return outputAs.String, errorsAs.String, nil
	case l.IsArray():
		return l.Job.Output, l.Job.Errors, nil // they are patterns for its elements
	}
	return patternOf(l.Job.Output, l), patternOf(l.Job.Errors, l), nil
}

// program is what a job runs.
func (t rows) program(ctx context.Context, id int64) (p Program, err error) {
	var args, env string
	err = t.db.QueryRowContext(ctx, `SELECT script, args, dir, env, reader FROM jobs WHERE launch_id = ?`,
		id).Scan(&p.Script, &args, &p.Dir, &env, &p.Reader)
	if errors.Is(err, sql.ErrNoRows) {
		return p, ErrNotFound
	}
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(args), &p.Args), json.Unmarshal([]byte(env), &p.Env))
	}
	if err != nil {
		return p, fmt.Errorf("read what job %d runs: %w", id, err)
	}
	return p, nil
}

// Of each kind only so many may be active.
const (
	kindNotebook = "notebook"
	kindJob      = "job"
	kindElement  = "element" // of an array
	kindService  = "service"
)

func kindOf(l Launch) string {
	switch {
	case l.Job == nil:
		return kindNotebook
	case l.Service != nil:
		return kindService
	case l.Job.ArrayJob != 0:
		return kindElement
	}
	return kindJob
}

// kindColumn is kindOf a row.
const kindColumn = `CASE WHEN launch_id IS NULL THEN 'notebook' WHEN service IS NOT NULL THEN 'service'
	WHEN array_job IS NULL THEN 'job' ELSE 'element' END`

const launchTables = `launches LEFT JOIN jobs ON launch_id = id LEFT JOIN services ON service = id`

// activeNames are the names that are taken, and by which kind.
func activeNames(ctx context.Context, tx *sql.Tx, userID int64) (map[string]string, error) {
	r, err := tx.QueryContext(ctx, `SELECT name, `+kindColumn+` FROM `+launchTables+
		` WHERE user_id = ? AND state <> 'ended'`, userID)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	names := map[string]string{}
	for r.Next() {
		var name, kind string
		if err := r.Scan(&name, &kind); err != nil {
			return nil, err
		}
		names[name] = kind
	}
	return names, r.Err()
}

func (t rows) get(ctx context.Context, id int64) (Launch, error) {
	list, err := t.query(ctx, `WHERE id = ?`, id)
	if err != nil {
		return Launch{}, err
	}
	if len(list) == 0 {
		return Launch{}, ErrNotFound
	}
	return list[0], nil
}

// active is every launch that has not ended, oldest request first.
func (t rows) active(ctx context.Context) ([]Launch, error) {
	return t.query(ctx, `WHERE state <> 'ended' ORDER BY requested_at, id`)
}

// ofUser is the user's active launches of a kind, newest first, then the ended ones, at most limit in all.
func (t rows) ofUser(ctx context.Context, userID int64, limit int, kind string) ([]Launch, error) {
	return t.query(ctx, `WHERE user_id = ? AND `+kindColumn+
		` = ? ORDER BY state = 'ended', requested_at DESC, id DESC LIMIT ?`, userID, kind, limit)
}

// endedJobs is every job that has ended since, but for elements of arrays.
func (t rows) endedJobs(ctx context.Context, since time.Time) ([]Launch, error) {
	return t.query(ctx,
		`WHERE state = 'ended' AND ended_at >= ? AND launch_id IS NOT NULL AND array_job IS NULL AND port IS NULL
			ORDER BY ended_at, id`,
		since.UnixMilli())
}

func (t rows) query(ctx context.Context, where string, args ...any) ([]Launch, error) {
	r, err := t.db.QueryContext(ctx, `SELECT `+launchColumns+` FROM `+launchTables+` `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read the launches: %w", err)
	}
	defer func() { _ = r.Close() }()
	var list []Launch
	for r.Next() {
		l, err := scanLaunch(r)
		if err != nil {
			return nil, fmt.Errorf("read the launches: %w", err)
		}
		list = append(list, l)
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("read the launches: %w", err)
	}
	return list, nil
}

func scanLaunch(r *sql.Rows) (Launch, error) {
	var (
		l                     Launch
		requested             int64
		started, ready, ended sql.NullInt64
		uuids, placement      string
		output, environment   sql.NullString
		after, tries, tasks   sql.NullString
		gpus, array, task     sql.NullInt64
		retries, notBefore    sql.NullInt64
		held, preemptible     sql.NullBool
		wayLaunch             sql.NullInt64
		wayFor                sql.NullString
		limit, exit           sql.NullInt64
		port, door, groupID   sql.NullInt64
		share, group          sql.NullString
		restarts              sql.NullBool
		stopAt                sql.NullInt64
		notes, errFile, mail  sql.NullString
	)
	err := r.Scan(&l.ID, &l.UserID, &l.Handle, &l.Name, &l.Title, &l.Profile, &l.GPUs, &l.State, &l.Reason, &l.EndCode,
		&requested, &started, &ready, &ended, &l.Node, &l.Pod, &uuids, &l.Simulated, &placement, &output, &limit, &exit,
		&environment, &after, &held, &retries, &tries, &notBefore,
		&tasks, &gpus, &array, &task, &preemptible, &wayLaunch, &wayFor, &notes, &errFile, &mail, &port, &door, &share,
		&groupID, &group, &restarts, &stopAt)
	if err != nil {
		return Launch{}, err
	}
	if err := json.Unmarshal([]byte(uuids), &l.GPUUUIDs); err != nil {
		return Launch{}, fmt.Errorf("launch %d: GPU list: %w", l.ID, err)
	}
	if err := json.Unmarshal([]byte(placement), &l.Placement); err != nil {
		return Launch{}, fmt.Errorf("launch %d: where it runs: %w", l.ID, err)
	}
	l.Requested, l.Started, l.Ready, l.Ended = time.UnixMilli(requested), unixMilli(started), unixMilli(ready),
		unixMilli(ended)
	if output.Valid {
		l.Job = &Job{Output: output.String, Limit: time.Duration(limit.Int64) * time.Second, Environment: environment.String,
			Held: held.Bool, Retries: int(retries.Int64), NotBefore: unixMilli(notBefore),
			Array: tasks.String, ArrayJob: array.Int64, ArrayTask: int(task.Int64), Preemptible: preemptible.Bool,
			WayLaunch: wayLaunch.Int64, WayFor: wayFor.String, Errors: errFile.String}
		if l.IsArray() {
			l.GPUs = int(gpus.Int64)
		}
		if err := json.Unmarshal([]byte(after.String), &l.Job.After); err != nil {
			return Launch{}, fmt.Errorf("launch %d: whom it waits for: %w", l.ID, err)
		}
		if err := json.Unmarshal([]byte(tries.String), &l.Job.Tries); err != nil {
			return Launch{}, fmt.Errorf("launch %d: its tries: %w", l.ID, err)
		}
		if err := json.Unmarshal([]byte(notes.String), &l.Job.Notes); err != nil {
			return Launch{}, fmt.Errorf("launch %d: its notes: %w", l.ID, err)
		}
		if mail.String != "" {
			l.Job.Mail = strings.Split(mail.String, ",")
		}
		if exit.Valid {
			l.Job.ExitCode = new(int(exit.Int64))
		}
	}
	if port.Valid {
		l.Service = &WebService{
			Port: int(port.Int64), Door: int(door.Int64), Share: Share{share.String, group.String, groupID.Int64},
			Restarts: restarts.Bool, StopAt: unixMilli(stopAt),
		}
	}
	l.URL = l.url()
	return l, nil
}

func unixMilli(v sql.NullInt64) time.Time {
	if !v.Valid || v.Int64 == 0 {
		return time.Time{}
	}
	return time.UnixMilli(v.Int64)
}

// errMoved: the row was no longer in the state the change was decided from.
var errMoved = errors.New("the launch moved on meanwhile")

// move writes the changeable fields of l if the row is still in state from.
func (t rows) move(ctx context.Context, from State, l Launch) error {
	uuids, err := json.Marshal(l.GPUUUIDs)
	if err != nil {
		return fmt.Errorf("launch %d: %w", l.ID, err)
	}
	if l.GPUUUIDs == nil {
		uuids = []byte("[]")
	}
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("update launch %d: %w", l.ID, err)
	}
	defer func() { _ = tx.Rollback() }()
	if from == Stopping && l.State == Waiting {
		if err := tryAgain(ctx, tx, l); err != nil {
			return fmt.Errorf("update launch %d: %w", l.ID, err)
		}
	}
	res, err := tx.ExecContext(ctx, `UPDATE launches SET state = ?, reason = ?, end_code = ?,
		started_at = ?, ready_at = ?, ended_at = ?, node = ?, pod = ?, gpu_uuids = ?, simulated = ?
		WHERE id = ? AND state = ?`,
		l.State, l.Reason, l.EndCode, nullMilli(l.Started), nullMilli(l.Ready), nullMilli(l.Ended),
		l.Node, l.Pod, string(uuids), l.Simulated, l.ID, from)
	if err != nil {
		return fmt.Errorf("update launch %d: %w", l.ID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("update launch %d: %w", l.ID, err)
	}
	if n == 0 {
		return errMoved
	}
	if l.Job != nil && l.Job.ExitCode != nil {
		_, err = tx.ExecContext(ctx, `UPDATE jobs SET exit_code = ? WHERE launch_id = ?`, *l.Job.ExitCode, l.ID)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("update launch %d: %w", l.ID, err)
	}
	return nil
}

func nullMilli(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMilli(), Valid: !t.IsZero()}
}
