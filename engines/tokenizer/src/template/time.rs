//! `strftime` in universal time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `time` by `format` in C's notation; a letter that is not known stays as it is.
pub(crate) fn strftime(time: SystemTime, format: &str) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let weekday = (days + 4) % 7;
    let (year, month, day) = civil(days);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before: u64 = [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30][..month as usize - 1].iter().sum();
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[weekday as usize]);
    let hour_12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut letter = letters.next();
        let bare = letter == Some('-');
        if bare {
            letter = letters.next();
        }
        let two = |n: u64| if bare { n.to_string() } else { format!("{n:02}") };
        match letter {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&two(year % 100)),
            Some('m') => out.push_str(&two(month)),
            Some('d') => out.push_str(&two(day)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('w') => out.push_str(&weekday.to_string()),
            Some('H') => out.push_str(&two(hour)),
            Some('I') => out.push_str(&two(hour_12)),
            Some('M') => out.push_str(&two(minute)),
            Some('S') => out.push_str(&two(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('j') => out.push_str(&if bare { (before + day).to_string() } else { format!("{:03}", before + day) }),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('s') => out.push_str(&seconds.to_string()),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push_str(if bare { "%-" } else { "%" });
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day since 1970-01-01 (Gregorian: 400 years have 146,097 days; years from March).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_c_writes_them() {
        // Expected: date -u -d @SECONDS +'%Y-%m-%d %A %j %I:%M:%S %p'
        let cases = [
            (0, "1970-01-01 Thursday 001 12:00:00 AM"),
            (951_782_400, "2000-02-29 Tuesday 060 12:00:00 AM"),
            (1_735_689_599, "2024-12-31 Tuesday 366 11:59:59 PM"),
            (4_107_542_400, "2100-03-01 Monday 060 12:00:00 AM"),
        ];
        for (seconds, expected) in cases {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime(time, "%Y-%m-%d %A %j %I:%M:%S %p"), expected);
        }
        assert_eq!(strftime(UNIX_EPOCH, "%-d %b %y %% %Q %"), "1 Jan 70 % %Q %");
    }
}
