//! The text form: reading, refusals with their places, and printing.

use memc_alloc::csv::{read, write};
use memc_alloc::{Buffer, Instance, InstanceError, Range, check};

const GOOD: &str = "id,lower,upper,size\na,0,4,10\nb,2,6,5\n";

#[test]
fn an_instance_is_read_and_an_allocation_printed() {
    let named = read(GOOD).expect("the text is right");
    assert_eq!(named.instance.load(), 15);
    assert_eq!(check(&named.instance, &[0, 10]), Ok(15));
    assert_eq!(write(&named, &[0, 10]), "id,lower,upper,size,offset\na,0,4,10,0\nb,2,6,5,10\n");
    let again = read(&write(&named, &[0, 10])).expect("what is printed can be read");
    assert_eq!(again.instance.buffers()[1].offset, Some(10), "printed offsets are fixed ones when read");
}

#[test]
fn columns_may_be_in_any_order_and_an_offset_may_be_missing() {
    let named =
        read("\u{feff}size, id ,upper,lower,offset\r\n10,a,4,0,\r\n\r\n5,b,6,2,64\r\n").expect("right");
    assert_eq!(named.ids, ["a", "b"]);
    assert_eq!(named.instance.buffers()[0].offset, None);
    assert_eq!(named.instance.buffers()[1].offset, Some(64));
}

#[test]
fn an_instance_without_buffers_is_one() {
    let named = read("id,lower,upper,size\n").expect("right");
    assert_eq!(check(&named.instance, &[]), Ok(0));
}

#[test]
fn every_mistake_is_refused_with_line_and_column() {
    let cases: &[(&str, usize, Option<&str>, &str)] = &[
        ("", 1, None, "empty"),
        ("0,0,4,10\n", 1, Some("0"), "header"),
        ("id,lower,upper\n", 1, Some("size"), "missing"),
        ("id,lower,upper,size,size\n", 1, Some("size"), "twice"),
        ("id,lower,upper,size,colour\n", 1, Some("colour"), "unknown"),
        ("id,lower,upper,size\na,0,4\n", 2, None, "3 fields"),
        ("id,lower,upper,size\na,0,4,10,7\n", 2, None, "5 fields"),
        ("id,lower,upper,size\na,0,4,ten\n", 2, Some("size"), "whole number"),
        ("id,lower,upper,size\na,0,4,1.5\n", 2, Some("size"), "whole number"),
        ("id,lower,upper,size\na,0,4,+1\n", 2, Some("size"), "whole number"),
        ("id,lower,upper,size\na,0,4,-10\n", 2, Some("size"), "negative"),
        ("id,lower,upper,size\na,0,4,\n", 2, Some("size"), "missing"),
        ("id,lower,upper,size\na,0,4,99999999999999999999\n", 2, Some("size"), "larger"),
        ("id,lower,upper,size\na,4,4,10\n", 2, Some("upper"), "where it starts"),
        ("id,lower,upper,size\na,0,4,10\nb,5,4,10\n", 3, Some("upper"), "before it starts"),
        ("id,lower,upper,size\na,0,4,10\n\na,0,4,10\n", 4, Some("id"), "line 2"),
        ("id,lower,upper,size\n,0,4,10\n", 2, Some("id"), "empty"),
        ("id,lower,upper,size\na,0,4,10\nb,0,4,18446744073709551615\n", 3, Some("size"), "more than"),
        ("id,lower,upper,size,offset\na,0,4,10,0\nb,5,6,10,\nc,3,5,10,9\n", 4, Some("offset"), "line 2"),
    ];
    for (text, line, column, part) in cases {
        let e = read(text).expect_err(text);
        assert_eq!((e.line, e.column.as_deref()), (*line, *column), "{text:?}: {e}");
        assert!(e.to_string().contains(part), "{text:?}: {e}");
    }
}

#[test]
fn buffers_that_make_no_sense_are_refused() {
    let with = |change: fn(&mut Buffer)| {
        let mut b = Buffer::new(0, 4, 10);
        change(&mut b);
        Instance::new(vec![Buffer::new(0, 1, 1), b]).expect_err("it makes no sense")
    };
    assert_eq!(with(|b| b.live.clear()), InstanceError::NeverLive(1));
    assert_eq!(with(|b| b.live[0].end = 0).buffer(), 1);
    assert!(matches!(with(|b| b.live.push(Range { start: 3, end: 5 })), InstanceError::Unordered(1, ..)));
    assert_eq!(with(|b| b.align = 0), InstanceError::ZeroAlign(1));
    assert_eq!(with(|b| (b.align, b.offset) = (8, Some(4))), InstanceError::Misaligned(1, 4));
    assert_eq!(with(|b| b.offset = Some(u64::MAX)), InstanceError::TooLarge(1));
}

#[test]
fn allocations_that_are_none_are_seen() {
    use memc_alloc::Conflict::{Count, Offset, Overlap};
    let mut buffers = vec![Buffer::new(0, 4, 10), Buffer::new(2, 6, 5), Buffer::new(4, 8, 7)];
    buffers[0].live.push(Range { start: 6, end: 7 });
    let instance = Instance::new(buffers).expect("right");
    assert_eq!(check(&instance, &[0, 10]), Err(Count));
    assert_eq!(check(&instance, &[0, 10, u64::MAX]), Err(Offset(2)));
    assert_eq!(check(&instance, &[0, 9, 20]), Err(Overlap(0, 1)));
    assert_eq!(
        check(&instance, &[0, 10, 3]),
        Err(Overlap(0, 2)),
        "they meet in the first one's second life only"
    );
    assert_eq!(check(&instance, &[0, 10, 15]), Ok(22));
}
