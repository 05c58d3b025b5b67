//! Enums whose variants are spelled as words in texts and files.

/// Defines such an enum with `ALL`, `name` and `from_name`.
macro_rules! words {
    ($(#[$doc:meta])* pub enum $Name:ident {
        $($(#[$variant_doc:meta])* $Variant:ident = $word:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $Name { $($(#[$variant_doc])* $Variant,)* }

        impl $Name {
            /// All of them, in order.
            pub const ALL: [$Name; [$($word),*].len()] = [$($Name::$Variant),*];

            /// Spelling in texts and files.
            pub const fn name(self) -> &'static str {
                match self { $($Name::$Variant => $word),* }
            }

            /// The one that is spelled `name`.
            pub fn from_name(name: &str) -> Option<$Name> {
                $Name::ALL.into_iter().find(|x| x.name() == name)
            }
        }
    };
}
