package history

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

func TestStretches(t *testing.T) {
	const m = 600 * aMonth // the beginning of one
	for name, c := range map[string]struct {
		from, to int64
		want     []stretch
	}{
		"everything":             {math.MinInt64, never, []stretch{{aMonth, math.MinInt64, never}}},
		"an hour":                {m + anHour, m + 2*anHour, []stretch{{anHour, m + anHour, m + 2*anHour}}},
		"a day":                  {m, m + aDay, []stretch{{aDay, m, m + aDay}}},
		"a day over midnight":    {m + anHour, m + aDay + anHour, []stretch{{anHour, m + anHour, m + aDay + anHour}}},
		"two days over midnight": {m + anHour, m + 2*aDay, []stretch{{anHour, m + anHour, m + aDay}, {aDay, m + aDay, m + 2*aDay}}},
		"since": {m - aDay - anHour, never, []stretch{
			{anHour, m - aDay - anHour, m - aDay}, {aDay, m - aDay, m}, {aMonth, m, never},
		}},
		"until": {math.MinInt64, m + aDay + anHour, []stretch{
			{aMonth, math.MinInt64, m}, {aDay, m, m + aDay}, {anHour, m + aDay, m + aDay + anHour},
		}},
		"all lengths": {m - anHour, m + 2*aMonth + 3*aDay + anHour, []stretch{
			{anHour, m - anHour, m}, {aMonth, m, m + 2*aMonth}, {aDay, m + 2*aMonth, m + 2*aMonth + 3*aDay}, {anHour, m + 2*aMonth + 3*aDay, m + 2*aMonth + 3*aDay + anHour},
		}},
		"before 1970": {-aDay, aDay, []stretch{{aDay, -aDay, aDay}}},
	} {
		if got := stretches(c.from, c.to); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// However a window lies, the sums say what the hours say.
func TestSumsAreTheHours(t *testing.T) {
	l := newLab(t)
	random := rand.New(rand.NewPCG(3, 4))
	people := []string{"ada", "ben", "eve"}
	for l.wall.Before(noon.AddDate(0, 0, 100)) {
		first := people[random.IntN(3)]
		g := heldBy(idle(), first, people[random.IntN(3)])
		g.UUID, g.Simulated = fmt.Sprintf("GPU-%d", random.IntN(2)), random.IntN(5) == 0
		g.Processes = []gpu.Process{process(first, ptr(float64(random.IntN(100))), ptr(uint64(random.IntN(1<<30))))}
		for range 3 {
			l.Add(snap(g))
			l.pass(time.Second)
		}
		l.flush()
		l.pass(time.Duration(random.IntN(6*3600)) * time.Second)
	}
	for range 200 {
		f := Filter{From: noon.Add(time.Duration(random.IntN(100*24*3600)-10*24*3600) * time.Second)}
		f.To = f.From.Add(time.Duration(1+random.IntN(70*24*3600)) * time.Second)
		switch random.IntN(6) {
		case 0:
			f.From = time.Time{}
		case 1:
			f.To = time.Time{}
		case 2:
			f.User = people[random.IntN(3)]
		case 3:
			f.GPU = "GPU-1"
		}
		// The hours alone, which are what was recorded.
		var held, energy float64
		for _, u := range l.usage(f, ByHour) {
			held += u.Held
			if u.Energy != nil {
				energy += *u.Energy
			}
		}
		for _, by := range []By{ByGPU, ByTotal} {
			var summedHeld, summedEnergy float64
			for _, u := range l.usage(f, by) {
				summedHeld += u.Held
				if u.Energy != nil {
					summedEnergy += *u.Energy
				}
			}
			near(t, fmt.Sprintf("held by %s in %+v", by, f), summedHeld, held, 1e-6)
			near(t, fmt.Sprintf("energy by %s in %+v", by, f), summedEnergy, energy, 1e-3)
		}
	}
	checkSumTables(t, l)
	// Hours from before there were sums are summed up when a new version starts.
	if _, err := l.store.DB().Exec("DELETE FROM usage_sums"); err != nil {
		t.Fatal(err)
	}
	migration, err := os.ReadFile("../store/migrations/0005_usage_sums.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range strings.Split(string(migration), ";\n") {
		if statement = strings.TrimSpace(statement); strings.HasPrefix(statement, "INSERT") {
			if _, err := l.store.DB().Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	checkSumTables(t, l)
}

// checkSumTables compares the sums of all lengths.
func checkSumTables(t *testing.T, l *lab) {
	t.Helper()
	var tables []string
	for _, table := range []string{"usage", "usage_sums WHERE span = 86400", "usage_sums WHERE span = 2764800"} {
		var rows int
		var held, memory, busy float64
		if err := l.store.DB().QueryRow("SELECT count(*), sum(held), sum(memory), sum(busy) FROM "+table).Scan(&rows, &held, &memory, &busy); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d rows", table, rows)
		tables = append(tables, fmt.Sprintf("%.3f %.6g %.3f", held, memory, busy))
	}
	if tables[0] != tables[1] || tables[0] != tables[2] {
		t.Errorf("the tables say %q", tables)
	}
}
