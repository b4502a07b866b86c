// Package history keeps what the lab's GPUs did over time, what happened to
// them, and who used them: from the snapshots that internal/fleet passes on it
// makes series for charts, events, and a ledger of use. cmd/gpulab wires it;
// pages and commands ask it.
//
// # Readings
//
// Series are kept in three levels: single seconds for ten minutes, in memory;
// ten seconds for 25 hours and five minutes for 366 days, in metrics.db. Use,
// power and clock are means, use, power, memory and temperature peaks, so that a
// mean hides no peak. Rows hold sums and counts: a slot that is written in parts
// is exact.
//
// The size is bounded by the number of GPUs: a year of one takes 4.6 MB (46 MB
// for ten, measured by test/bench/history), and nothing grows after that. Ten
// minutes of seconds take 80 kB of memory for each GPU.
//
// # Ledger
//
// The ledger is in gpulab.db, hour by hour (of UTC), kept for good, with its
// sums over days and over 32 days, which answer for long windows: 32 MB a year for
// ten GPUs that a hundred people share. It says what somebody had of a card:
//
//   - Held: a pod of theirs has the card from the kubelet, or a process of theirs
//     is on it. Outside of gpulab, where nothing is handed out, it is the latter.
//     Everybody on a shared card holds it. Of a card in MIG mode who has an instance
//     holds its part of the multiprocessors: 3/7 of the time, with a 3g of seven.
//   - Busy: their processes' share of the multiprocessors was at least BusyShare.
//     Where the driver does not tell shares, somebody alone on a card is as busy
//     as the card; of several, none is unless the card is idle: that time is
//     unknown. Processes that only draw, below DesktopShare, are nobody's use.
//   - Idle is what is left: held - busy - unknown.
//   - Compute: their share of the card's time, in seconds of the whole card.
//   - Memory: of their processes; alone on a card whose driver does not tell, the
//     card's. The rest of the card's memory is unattributed.
//   - Energy: the difference of the card's counter, else power times time. On a
//     shared card it is split by the measured shares of that second, evenly if all
//     are idle, and is unattributed if they are not known or nobody is there.
//
// A row for the card itself has the sums of energy and memory, and the time in
// which anybody held it, or it was busy.
//
// Time is what a clock that nobody sets says has passed between two snapshots of
// a machine; more than Config.Limit is a gap and counts for nothing but the energy
// spent in it, which is unattributed. The time of the day only chooses the hour:
// when it is set back, an hour goes on to be added to, and the sums stay right.
// While readings are missing and the kubelet still tells who has a card, it is
// held, and whether it was used is unknown. Simulated cards are other cards than
// real ones, and no row is about both.
//
// # Events
//
// XID errors, GPUs that are lost or back, and probes that go down or up. Errors
// that the kernel's log has from before the probe's start are noted unless they
// have been. Equal
// ones of a minute are one row with a count; the newest 20,000 rows of a year are
// kept. gpu.ExplainXID says what an XID means.
//
// # Faults
//
// All of it is written every eight seconds; a crash of gpulab loses no more. After
// a power cut the ledger lacks no more either; metrics.db, which is synced at
// checkpoints only, may lack some minutes. What cannot be written, as on a full
// disk, waits in memory, within bounds, and is written when there is room; Problem
// says so meanwhile. A metrics.db that is damaged is set aside and begun anew;
// gpulab.db never is.
package history
