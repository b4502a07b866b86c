package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Setting reads a setting of the lab, "" where it was never set.
func (s *Store) Setting(ctx context.Context, key string) (string, error) {
	return Setting(ctx, s.main, key)
}

// SetSetting writes a setting of the lab; "" takes it back.
func (s *Store) SetSetting(ctx context.Context, key, value string) error {
	return SetSetting(ctx, s.main, key, value)
}

// Setting is Store's method of the name, on a gpulab.db that is open without one.
func Setting(ctx context.Context, main *sql.DB, key string) (string, error) {
	var value string
	err := main.QueryRowContext(ctx, `SELECT value FROM settings WHERE key = ?`, key).Scan(&value)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("read the setting %s: %w", key, err)
	}
	return value, nil
}

// SetSetting is Store's method of the name, on a gpulab.db that is open without one.
func SetSetting(ctx context.Context, main *sql.DB, key, value string) error {
	query, args := `INSERT INTO settings (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2`,
		[]any{key, value}
	if value == "" {
		query, args = `DELETE FROM settings WHERE key = ?1`, []any{key}
	}
	if _, err := main.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("write the setting %s: %w", key, err)
	}
	return nil
}
