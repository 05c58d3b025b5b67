//! Random damage to module texts: the parser and the verifier answer, they never panic, and what parses
//! prints to a fixpoint.

use memc_ir::{parse, parse_op, parse_type, print, print_annotated, verify};

const SEEDS: [&str; 2] = [include_str!("data/graph.mir"), include_str!("data/mem.mir")];

/// Replaces, removes, repeats or swaps pieces of a text.
fn damage(text: &str, u: &mut arbtest::arbitrary::Unstructured<'_>) -> arbtest::arbitrary::Result<String> {
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    for _ in 0..u.int_in_range(1..=4)? {
        let (i, j) = (u.choose_index(lines.len())?, u.choose_index(lines.len())?);
        match u.int_in_range(0..=5)? {
            0 => lines.swap(i, j),
            1 => lines[i] = lines[j].clone(),
            2 => lines[i].clear(),
            3 => {
                let words: Vec<&str> = SEEDS.iter().flat_map(|s| s.split_whitespace()).collect();
                let mut parts: Vec<String> = lines[i].split(' ').map(String::from).collect();
                let at = u.choose_index(parts.len())?;
                parts[at] = (*u.choose(&words)?).to_string();
                lines[i] = parts.join(" ");
            }
            4 => {
                let numbers = ["0", "-1", "9223372036854775807", "1e38", "[1, 2]", "nan(0x7fc00000)"];
                let digits = lines[i].find(|c: char| c.is_ascii_digit());
                if let Some(at) = digits {
                    lines[i].replace_range(at..=at, u.choose(&numbers)?);
                }
            }
            _ => {
                let end = lines[i].char_indices().map(|(at, _)| at).nth(u.int_in_range(0..=40)?).unwrap_or(0);
                lines[i].truncate(end);
            }
        }
    }
    Ok(lines.join("\n"))
}

#[test]
fn damaged_modules_are_judged_without_a_panic() {
    arbtest::arbtest(|u| {
        let text = damage(u.choose(&SEEDS)?, u)?;
        if let Ok(module) = parse(&text) {
            let printed = print(&module);
            let again = parse(&printed).unwrap_or_else(|d| panic!("{d}\n{printed}"));
            assert_eq!(print(&again), printed);
            if let Err(diags) = verify(&module) {
                assert!(!diags.0.is_empty() && print_annotated(&module, &diags).contains(";~ "));
            }
        }
        Ok(())
    })
    .budget_ms(1_000);
}

#[test]
fn random_text_is_refused_without_a_panic() {
    arbtest::arbtest(|u| {
        let text: String = u.arbitrary()?;
        let _ = (parse(&text), parse_op(&text, &text), parse_type(&text));
        let _ = parse(&format!("module @m graph\n{text}"));
        Ok(())
    })
    .budget_ms(500);
}
